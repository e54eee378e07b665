"""The filter that has another backend answer in place of an error, as a program in Lua.

It is in Lua: Envoy's own filter for this (``custom_response``) sends the request into the routes once more, so
that clients could ask for the route of the error pages, too. It is the first filter, so it sees every answer last.
"""

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.routes import ErrorAnswers

_TIMEOUT_MS = 10_000
_LONGEST = 60_000
"""Bytes of an answer that is replaced: the engine holds 64 KiB, and has to hold it until it is replaced."""
ERROR_ANSWERS_PROGRAM = """
local HOP = {["transfer-encoding"] = true, ["connection"] = true, ["keep-alive"] = true, ["upgrade"] = true,
  ["content-length"] = true}

local function of_host(name) -- what the host says with each answer, whoever gave it
  return name:sub(1, 1) == ":" or name == "strict-transport-security" or name:find("access-control-", 1, true) == 1
end

local function answer(handle, status)
  local asked = handle:streamInfo():dynamicMetadata():get("errors") or {}
  local has_body = asked["method"] ~= "HEAD"
  if tonumber(handle:headers():get("content-length") or "0") > LONGEST then return end
  if has_body then handle:body(true) end -- while the other backend is asked, it would pass
  local context = handle:metadata() -- objects of before the body are gone
  local question = {[":method"] = "GET", [":path"] = "/", [":authority"] = asked["host"], ["x-code"] = status,
    ["x-format"] = asked["accept"], ["x-original-uri"] = asked["path"], ["x-request-id"] = asked["id"]}
  for name in context:get("headers"):gmatch("[^,]+") do question[name] = context:get(name) end
  local found, body = handle:httpCall(context:get("backend"), question, nil,
    {["timeout_ms"] = TIMEOUT, ["return_duplicate_headers"] = true})
  if found[":status"] == "503" then return end
  body = body or ""
  local headers, old = handle:headers(), {}
  for name in pairs(headers) do
    if not of_host(name) then old[#old + 1] = name end
  end
  for _, name in ipairs(old) do headers:remove(name) end
  for name, value in pairs(found) do
    for _, text in ipairs(type(value) == "table" and value or {value}) do
      if name == ":status" then headers:replace(name, text) elseif not HOP[name] then headers:add(name, text) end
    end
  end
  headers:replace("content-length", tostring(#body))
  if has_body then handle:body(true):setBytes(body) end
end

function envoy_on_request(handle)
  local headers, asked = handle:headers(), handle:streamInfo():dynamicMetadata()
  asked:set("errors", "method", headers:get(":method"))
  asked:set("errors", "host", headers:get(":authority"))
  asked:set("errors", "path", headers:get(":path"))
  asked:set("errors", "accept", headers:get("accept") or "")
  asked:set("errors", "id", headers:get("x-request-id") or "")
end

function envoy_on_response(handle)
  local status = handle:headers():get(":status")
  if not handle:metadata():get("statuses"):find(status, 1, true) then return end
  local done, problem = pcall(answer, handle, status)
  if not done then handle:logErr(tostring(problem)) end
end
""".replace("TIMEOUT", str(_TIMEOUT_MS)).replace("LONGEST", str(_LONGEST))


def error_metadata(errors: ErrorAnswers) -> Json:
    """What a route tells the program."""
    return {
        "backend": errors.backend,
        "statuses": " ".join(map(str, errors.statuses)),
        "headers": ",".join(name.lower() for name, _ in errors.headers),
        **{name.lower(): text for name, text in errors.headers},
    }
