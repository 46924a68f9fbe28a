-- Chat requests for wrk. Arguments: hit | numbers | words, and a seed.
-- hit: one request again and again. numbers: every question names another case, so that a guard tells it from its neighbours.
-- words: random questions of one pattern, so that neighbours are close and the verifier is asked.

local subjects = {"password", "invoice", "delivery", "account", "address", "subscription", "refund", "camera", "router", "printer",
  "garden", "bicycle", "kitchen", "passport", "insurance", "contract", "salary", "holiday", "flight", "hotel", "recipe", "guitar",
  "battery", "keyboard", "engine", "window", "server", "database", "network", "backup", "medicine", "vaccine", "exam", "lecture"}
local verbs = {"change", "cancel", "repair", "compare", "explain", "measure", "sell", "paint", "import", "translate", "protect",
  "replace", "upgrade", "schedule", "return", "review", "share", "clean", "restore", "publish", "configure", "inspect"}
local places = {"Paris", "winter", "school", "the office", "a small village", "the desert", "hospital", "the cloud", "a tent",
  "Norway", "the morning", "a hurry", "public", "an emergency", "the library", "a museum", "the mountains", "a factory"}

local mode, number, run = "hit", 0, 0

function init(arguments)
  mode, run = arguments[1], tonumber(arguments[2])
  math.randomseed(run)
end

local function one(list) return list[math.random(#list)] end

local function question()
  if mode == "hit" then return "What is a block?" end
  if mode == "numbers" then
    number = number + 1
    return string.format("How do I %s the %s of case %d%06d in %s?", one(verbs), one(subjects), run, number, one(places))
  end
  return string.format("How do I %s a %s and then %s the %s in %s?", one(verbs), one(subjects), one(verbs), one(subjects), one(places))
end

function request()
  return wrk.format("POST", nil, {["content-type"] = "application/json"}, '{"model":"demo","messages":[{"role":"system","content":'
    .. '"You are a helpful assistant."},{"role":"user","content":"' .. question() .. '"}]}')
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("\nRESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
