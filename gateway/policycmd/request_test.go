package policycmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/shared/policy"
)

const several = `schema: 1
exempt: [{user: monitor}]
policies:
  - name: api-per-user
    match: {paths: ["/v1/*"]}
    key: [user]
    algorithm: token_bucket
    rate: 100/s
    burst: 200
    scope: global
    on_failure: closed
    cost: {default: 2, rules: [{methods: [POST], cost: 5}], header: X-Cost, max: 9}
    tiers: {premium: {rate: 1000/s}}
  - name: by-address
    match: {hosts: ["*.example"], headers: {X-Plan: free}, query: {q: "1"}, claims: {org: o}, regions: [eu, us]}
    key: [ip, api_key]
    missing: deny
    algorithm: token_bucket
    rate: 10/s
    scope: region
    on_failure: closed
    enforce: 25%
  - name: strict
    match: {paths: [/strict]}
    key: [user]
    missing: deny
    algorithm: token_bucket
    rate: 10/s
    scope: region
    on_failure: closed
`

// arguments splits text at blanks, but for those in single quotes.
func arguments(text string) []string {
	var args []string
	for i, part := range strings.Split(text, "'") {
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	return args
}

func TestCheckAsksAboutARequest(t *testing.T) {
	const head = "FILE: good, 3 policies, 0 warnings, 0 notes\n"
	for args, want := range map[string]string{
		"--request 'GET /v1/x' --user acme":                                "GET /v1/x: 1 policy matches\n  api-per-user: key user=acme, limit 100 per second, burst 200, cost 2, scope global\n",
		"--request 'POST /a/../v1//x' --user acme --tier premium":          "POST /a/../v1//x: 1 policy matches\n  api-per-user: key user=acme, limit 1000 per second, burst 1000 (tier:premium), cost 5, scope global\n",
		"--request 'GET /v1/x' --user acme --header 'x-cost: 7' --trusted": "GET /v1/x: 1 policy matches\n  api-per-user: key user=acme, limit 100 per second, burst 200, cost 7, scope global\n",
		"--request 'GET /v1/x' --user acme --header 'x-cost: 7'":           "GET /v1/x: 1 policy matches\n  api-per-user: key user=acme, limit 100 per second, burst 200, cost 2, scope global\n",
		"--request 'GET /v1/x' --user acme --header X-Cost:-7 --trusted":   "GET /v1/x: answered 400, policy api-per-user: the header that says the request's cost must be one whole number from 1 to the policy's max: X-Cost: -7 is negative\n",
		"--request 'GET /' --user acme":                                    "GET /: 0 policies match\n",
		"--request 'GET /v1/x' --user monitor":                             "GET /v1/x: exempt, no policy applies\n",
		"--request 'GET /strict'":                                          "GET /strict: answered 401, policy strict: the request lacks an identity that a policy needs\n",
		"--request 'GET /..'":                                              "GET /..: answered 400, the request's path cannot be read\n",
		"--request 'GET /?q=1' --host a.example:80 --ip 192.0.2.7 --api-key K --header 'X-Plan: free' --claim org=o --region eu": "GET /?q=1: 1 policy matches\n  by-address: key api_key=" +
			"86be9a55762d316a3026c2836d044f5fc76e34da10e1b45feee5f18be7edb177,ip=192.0.2.7, limit 10 per second, burst 10, cost 1, scope region, 25% of keys enforced\n",
	} {
		out, code, err := run(t, several, append([]string{"check", "FILE"}, arguments(args)...)...)
		if err != nil || code != 0 || out != head+want {
			t.Errorf("annona policy check FILE %s prints\n%sand exits with %d, %v, want\n%s", args, out, code, err, head+want)
		}
	}
}

func TestCheckAsksInJSON(t *testing.T) {
	out, code, _ := run(t, several, "check", "FILE", "--format", "json", "--request", "POST /v1/x", "--user", "acme")
	var r result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || r.Asked == nil || len(r.Asked.Matches) != 1 {
		t.Fatalf("annona policy check --format json prints %s (%v)", out, err)
	}
	want := match{
		Policy: "api-per-user", Key: "user=acme", Algorithm: "token_bucket", Limit: "100 per second", Capacity: 200, Burst: 200, Cost: 5, Scope: policy.Global, Enforced: true,
	}
	if diff := cmp.Diff(want, r.Asked.Matches[0]); diff != "" {
		t.Errorf("it matches (-want +got):\n%s", diff)
	}
	if out, code, _ := run(t, bad, "check", "FILE", "--request", "GET /"); code != 1 || strings.Contains(out, "match") {
		t.Errorf("a refused document is asked: %d, %s", code, out)
	}
}

func TestQuestionsThatAreNone(t *testing.T) {
	for args, want := range map[string]string{
		"--user acme":                             "are about --request",
		"--trusted":                               "are about --request",
		"--request /v1/x":                         "METHOD /path",
		"--request 'GET /a b'":                    "METHOD /path",
		"--request 'GET /' --ip home":             "write one address",
		"--request 'GET /' --at noon":             "write an instant",
		"--request 'GET /' --header nonsense":     "NAME: VALUE",
		"--request 'GET /' --claim org":           "NAME=VALUE",
		"--request 'GET /' --request-header nope": "unknown flag",
	} {
		_, code, err := run(t, several, append([]string{"check", "FILE"}, arguments(args)...)...)
		if code != codeUsage || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("annona policy check FILE %s: exit code %d, %v, want %d and %q", args, code, err, codeUsage, want)
		}
	}
}

// try runs `annona policy test` on a document and cases.
func try(t *testing.T, document, cases string) (out string, code int) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "cases.yaml")
	if err := os.WriteFile(name, []byte(cases), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code, _ = run(t, document, "test", "FILE", name)
	return strings.ReplaceAll(out, name, "CASES"), code
}

func TestCasesPass(t *testing.T) {
	out, code := try(t, several, `- name: plain
  request: {path: /v1/x, user: acme}
  expect: {policies: [api-per-user], exempt: false, cost: 2, variant: {api-per-user: ""}, key: {api-per-user: user=acme}, enforced: {api-per-user: true}}
- {name: premium posts, request: {method: POST, path: /v1/x, user: acme, tier: premium}, expect: {cost: {api-per-user: 5}, variant: {api-per-user: "tier:premium"}}}
- {name: nobody, request: {path: /v1/x}, expect: {policies: []}}
- {name: monitoring, request: {path: /v1/x, user: monitor}, expect: {exempt: true, policies: []}}
- {name: no identity, request: {path: /strict}, expect: {status: 401}}
- {name: odd path, request: {path: "/a%00"}, expect: {status: 400}}
- {name: cost, request: {path: /v1/x, user: a, headers: {X-Cost: NaN}, trusted_peer: true}, expect: {status: 400}}
- {name: a stranger's cost, request: {path: /v1/x, user: a, headers: {X-Cost: NaN}}, expect: {cost: 2}}
`)
	if out != "CASES: 8 cases pass\n" || code != 0 {
		t.Errorf("annona policy test prints\n%sand exits with %d", out, code)
	}
}

func TestCasesFail(t *testing.T) {
	out, code := try(t, several, `- name: all wrong
  request: {path: /v1/x, user: acme}
  expect: {policies: [strict], exempt: true, cost: 3, variant: {strict: ""}, key: {api-per-user: user=b}, enforced: {api-per-user: false}}
- {name: passes, request: {user: acme}, expect: {policies: []}}
- {name: no refusal, request: {user: acme}, expect: {status: 401}}
- {name: a refusal, request: {path: /strict}, expect: {policies: []}}
- {name: another, request: {path: /strict}, expect: {status: 400}}
`)
	want := `CASES:1:3: all wrong: want exempt true, got false
CASES:1:3: all wrong: want policies [strict], got [api-per-user]
CASES:1:3: all wrong: want cost 3 of api-per-user, got 2
CASES:1:3: all wrong: want variant "" of strict, which does not match
CASES:1:3: all wrong: want key "user=b" of api-per-user, got "user=acme"
CASES:1:3: all wrong: want enforced false of api-per-user, got true
CASES:5:3: no refusal: want status 401, but no policy refuses the request
CASES:6:3: a refusal: the request is answered 401, policy strict: the request lacks an identity that a policy needs
CASES:7:3: another: want status 400, got 401, policy strict: the request lacks an identity that a policy needs
CASES: 4 of 5 cases fail
`
	if out != want || code != 1 {
		t.Errorf("annona policy test prints\n%sand exits with %d, want\n%s", out, code, want)
	}
}

func TestCasesThatCannotBeTried(t *testing.T) {
	for name, row := range map[string]struct{ document, cases, want string }{
		"cases":    {several, "- {name: x}\n", "CASES:1:3: error: request is missing; "},
		"document": {bad, "- {name: x}\n", "FILE:4:11: error: key[0] cannot be usr; did you mean user?\n"},
	} {
		if out, code := try(t, row.document, row.cases); code != codeUsage || !strings.HasPrefix(out, row.want) {
			t.Errorf("%s: annona policy test prints\n%sand exits with %d", name, out, code)
		}
	}
	for args, want := range map[string]string{"test FILE": "accepts 2 arg", "test FILE FILE.absent": "no such file", "test FILE.absent FILE": "no such file"} {
		if _, code, err := run(t, several, strings.Fields(args)...); code != codeUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("annona policy %s: %d, %v", args, code, err)
		}
	}
}

func TestSchemaPrints(t *testing.T) {
	out, code, err := run(t, "", "schema")
	if code != 0 || err != nil || !json.Valid([]byte(out)) || !strings.Contains(out, "json-schema.org") {
		t.Errorf("annona policy schema: %d, %v, %.100s", code, err, out)
	}
}

const algorithms = `schema: 1
policies:
  - name: quota
    match: {paths: [/quota]}
    key: [user]
    algorithm: fixed_window
    limit: 1000000
    window: day
    timezone: Europe/Rome
    scope: region
    on_failure: closed
    tiers: {gold: {limit: 5000000}}
    cost: {default: 100, actual: X-Actual-Cost, refund: [502, 503]}
  - name: queue
    match: {paths: [/queue]}
    key: [user]
    algorithm: token_bucket
    rate: 5/s
    burst: 1
    max_delay: 2s
    scope: region
    on_failure: closed
    ban: {denials: 1, within: 1m, for: 10m}
  - name: queue-next
    match: {paths: [/queue]}
    key: [user]
    algorithm: sliding_window_counter
    limit: 300
    window: 1m
    scope: region
    on_failure: closed
    candidate_of: queue
  - name: at-once
    match: {paths: [/slots]}
    key: [user]
    algorithm: concurrency
    limit: 20
    scope: region
    on_failure: closed
`

func TestCheckExplainsEveryAlgorithm(t *testing.T) {
	for args, want := range map[string]string{
		"--request 'GET /quota' --user acme --at 2026-03-29T12:00:00Z": "  quota: key user=acme, fixed_window, limit 1000000 per day, now from 2026-03-28T23:00:00Z, until 2026-03-29T22:00:00Z, cost 100, " +
			"then what X-Actual-Cost says, nothing at 502, 503, scope region\n",
		"--request 'GET /quota' --user acme --tier gold --at 2026-06-01T12:00:00+02:00": "  quota: key user=acme, fixed_window, limit 5000000 per day (tier:gold), now from 2026-05-31T22:00:00Z, until 2026-06-01T22:00:00Z, cost 100, " +
			"then what X-Actual-Cost says, nothing at 502, 503, scope region\n",
		"--request 'GET /queue' --user acme": "  queue: key user=acme, limit 5 per second, burst 1, waits up to 2s, cost 1, scope region, banned for 10m0s after 1 denial within 1m0s\n" +
			"  queue-next: key user=acme, sliding_window_counter, limit 300 per minute, cost 1, scope region, reports beside queue\n",
		"--request 'GET /slots' --user acme": "  at-once: key user=acme, concurrency, limit 20 at the same time, cost 1, scope region\n",
	} {
		out, code, err := run(t, algorithms, append([]string{"check", "FILE"}, arguments(args)...)...)
		if _, got, _ := strings.Cut(out, "match"); err != nil || code != 0 || !strings.HasSuffix(got, "\n"+want) {
			t.Errorf("annona policy check FILE %s prints\n%sand exits with %d, %v, want\n%s", args, out, code, err, want)
		}
	}
}

// TestCase18_CasesTellWhenAQuotaResets: an operator can write down, and have tested, when a quota resets.
func TestCase18_CasesTellWhenAQuotaResets(t *testing.T) {
	out, code := try(t, algorithms, `- name: the day on which clocks are put forward
  request: {path: /quota, user: acme, at: "2026-03-28T23:00:00Z"}
  expect: {limit: {quota: 1000000}, resets: {quota: "2026-03-29T22:00:00Z"}}
- name: the last moment of the day before
  request: {path: /quota, user: acme, at: "2026-03-28T22:59:59.999999Z"}
  expect: {resets: {quota: "2026-03-29T00:00:00+01:00"}}
- {name: slots, request: {path: /slots, user: acme}, expect: {limit: {at-once: 20}}}
- {name: a candidate denies nobody, request: {path: /queue, user: acme}, expect: {policies: [queue, queue-next], enforced: {queue: true, queue-next: false}}}
`)
	if out != "CASES: 4 cases pass\n" || code != 0 {
		t.Errorf("annona policy test prints\n%sand exits with %d", out, code)
	}
	out, code = try(t, algorithms, `- name: wrong
  request: {path: /quota, user: acme, tier: gold, at: "2026-03-28T23:00:00Z"}
  expect: {limit: {quota: 7}, resets: {quota: "2026-03-29T23:00:00Z"}}
- {name: no window, request: {path: /slots, user: acme}, expect: {resets: {at-once: "2026-03-29T23:00:00Z"}}}
`)
	want := `CASES:1:3: wrong: want limit 7 of quota, got 5000000
CASES:1:3: wrong: want resets "2026-03-29T23:00:00Z" of quota, got "2026-03-29T22:00:00Z"
CASES:4:3: no window: want resets "2026-03-29T23:00:00Z" of at-once, got ""
CASES: 2 of 2 cases fail
`
	if out != want || code != 1 {
		t.Errorf("annona policy test prints\n%sand exits with %d, want\n%s", out, code, want)
	}
}
