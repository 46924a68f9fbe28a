-- Chat requests for wrk. Arguments: `same` or `new`, and a seed.
-- same: one request again and again. new: each question names another case, so that a guard rejects its neighbours.

local subjects = {"password", "invoice", "delivery", "account", "address", "subscription", "refund", "camera", "router", "printer"}
local verbs = {"change", "cancel", "repair", "compare", "explain", "measure", "sell", "paint", "import", "translate", "protect"}
local places = {"Paris", "winter", "school", "the office", "a small village", "the desert", "hospital", "the cloud", "a tent"}
local questions, number, seed = "same", 0, 0

function init(arguments)
  questions, seed = arguments[1], tonumber(arguments[2])
  math.randomseed(seed)
  wrk.headers["content-type"] = "application/json"
end

local function one(list) return list[math.random(#list)] end

local function question()
  if questions == "same" then return "What is a block?" end
  number = number + 1
  return string.format("How do I %s the %s of case %d%06d in %s?", one(verbs), one(subjects), seed, number, one(places))
end

function request()
  return wrk.format("POST", nil, nil, '{"model":"demo","messages":[{"role":"system","content":'
    .. '"You are a helpful assistant."},{"role":"user","content":"' .. question() .. '"}]}')
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("\nRESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
