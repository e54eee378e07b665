"""What Envoy's filter for CORS leaves out of answers to preflight requests, as a program in Lua.

These are the exposed headers, and the names that the browser asks for in place of ``*``.
"""

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.routes import Cors

CORS_ANSWER_PROGRAM = """
function envoy_on_request(handle)
  local headers, asked = handle:headers(), handle:streamInfo():dynamicMetadata()
  asked:set("cors", "method", headers:get("access-control-request-method") or "")
  asked:set("cors", "headers", headers:get("access-control-request-headers") or "")
end
function envoy_on_response(handle)
  local headers = handle:headers()
  if headers:get("access-control-allow-origin") == nil then return end
  local rule = handle:metadata()
  if headers:get("access-control-expose-headers") == nil and rule:get("expose") then
    headers:replace("access-control-expose-headers", rule:get("expose"))
  end
  if not rule:get("echo") then return end
  local asked = handle:streamInfo():dynamicMetadata():get("cors") or {}
  for name, text in pairs({methods = asked["method"], headers = asked["headers"]}) do
    local header = "access-control-allow-" .. name
    if headers:get(header) and text and text ~= "" then headers:replace(header, text) end
  end
end
"""


def cors_metadata(cors: Cors) -> Json:
    """What a route tells the program."""
    return {"echo": cors.echo, **({"expose": ", ".join(cors.expose_headers)} if cors.expose_headers else {})}
