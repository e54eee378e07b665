"""The filter that asks another server whether a request may pass, as a program in Lua.

It is in Lua, since Envoy's own filter cannot ask for another path than that of the request. It fails closed: an
answer other than 2xx, 401 and 403, or none, is 500, and so is an error of the program itself.
"""

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.routes import ExternalAuth

_TIMEOUT_MS = 60_000
EXTERNAL_AUTH_PROGRAM = """
local HOP = {["content-length"] = true, ["transfer-encoding"] = true, ["connection"] = true, ["upgrade"] = true,
  ["te"] = true, ["expect"] = true, ["keep-alive"] = true}

local function escaped(text)
  return (text:gsub("[^%w%-_%.~]", function(c) return string.format("%%%02X", c:byte()) end))
end

local function values(headers, name)
  local value = headers[name]
  if type(value) == "table" then return value end
  return value and {value} or {}
end

local function check(handle)
  local context = handle:metadata()
  local headers = handle:headers()
  local path = headers:get(":path")
  local scheme = headers:get("x-forwarded-proto") or "http"
  local url = scheme .. "://" .. headers:get(":authority") .. path
  local names, signin = context:get("response_headers"), context:get("signin")
  local parameter = context:get("redirect_parameter") .. "="
  for name in names:gmatch("[^,]+") do headers:remove(name) end
  local question = {}
  for name, value in pairs(headers) do
    if name:sub(1, 1) ~= ":" and not HOP[name] then question[name] = value end
  end
  question[":method"] = context:get("method") ~= "" and context:get("method") or "GET"
  question[":path"] = context:get("path")
  question[":authority"] = context:get("host")
  question["x-original-url"] = url
  question["x-original-method"] = headers:get(":method")
  question["x-auth-request-redirect"] = path
  local answer, body = handle:httpCall(context:get("backend"), question, nil,
    {["timeout_ms"] = TIMEOUT, ["return_duplicate_headers"] = true})
  headers = handle:headers() -- objects of before the call are gone
  local status = values(answer, ":status")[1] or "500"
  if status:sub(1, 1) == "2" then
    for name in names:gmatch("[^,]+") do
      local found = values(answer, name)
      if #found > 0 then headers:replace(name, table.concat(found, ",")) end
    end
    local cookie = values(answer, "set-cookie")[1]
    if cookie then handle:streamInfo():dynamicMetadata():set("podwire.io", "auth-cookie", cookie) end
    return
  end
  if status == "401" and signin ~= "" then
    local target = signin
    if not target:find(parameter, 1, true) then
      target = target .. (target:find("?", 1, true) and "&" or "?") .. parameter .. escaped(url)
    end
    local response = {[":status"] = "302", ["location"] = target}
    local cookies = values(answer, "set-cookie")
    if #cookies > 0 then response["set-cookie"] = cookies end
    handle:respond(response, "")
    return
  end
  if status ~= "401" and status ~= "403" then
    handle:respond({[":status"] = "500"}, "")
    return
  end
  local response = {[":status"] = status}
  for _, name in ipairs({"www-authenticate", "set-cookie", "content-type"}) do
    local found = values(answer, name)
    if #found > 0 then response[name] = found end
  end
  handle:streamInfo():dynamicMetadata():set("podwire.io", "external", true)
  handle:respond(response, body or "")
end

function envoy_on_request(handle)
  local done, problem = pcall(check, handle)
  if not done then
    handle:logErr(tostring(problem))
    handle:respond({[":status"] = "500"}, "")
  end
end

function envoy_on_response(handle)
  local known = handle:streamInfo():dynamicMetadata():get("podwire.io")
  if known and known["auth-cookie"] then
    handle:headers():add("set-cookie", known["auth-cookie"])
  end
end
""".replace("TIMEOUT", str(_TIMEOUT_MS))


def auth_metadata(auth: ExternalAuth) -> Json:
    """What a route tells the program."""
    return {
        "backend": auth.backend,
        "host": auth.host,
        "path": auth.path,
        "method": auth.method,
        "response_headers": ",".join(auth.response_headers),
        "signin": auth.signin,
        "redirect_parameter": auth.redirect_parameter,
    }
