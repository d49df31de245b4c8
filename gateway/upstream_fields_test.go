package gateway

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/annona-gateway/annona/gateway/admit"
)

func halfSpent() *admit.Decision {
	return &admit.Decision{Answer: admit.Admitted, Reports: []admit.Report{reportOf("p", 100, perMinute, 50, 30_000_000, false)}}
}

const (
	ourSingle = "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 50\nX-RateLimit-Reset: 30\n"
	ourLists  = "RateLimit: \"p\";r=50;t=30\nRateLimit-Policy: \"p\";q=100;w=60\n"
)

var upstreamsFields = map[string]struct {
	sets     HeaderSets
	upstream map[string]string
	want     string
}{
	"stricter stays": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "7"},
		"X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 3\nX-RateLimit-Reset: 7\n",
	},
	"laxer goes": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "900", "X-RateLimit-Reset": "7"}, ourSingle,
	},
	"nonsense goes": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Limit": "x", "X-RateLimit-Remaining": "-3", "X-RateLimit-Reset": "NaN"}, ourSingle,
	},
	"a number that is too long is nonsense": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Remaining": "-99999999999999999999", "X-RateLimit-Reset": "1e9"}, ourSingle,
	},
	"a negative reset of a stricter one goes": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "-7"}, "X-RateLimit-Remaining: 3\n",
	},
	"a reset that is a time becomes seconds": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "1700000007"},
		"X-RateLimit-Remaining: 3\nX-RateLimit-Reset: 7\n",
	},
	"a reset that is a time in milliseconds, past": {
		HeaderSets{HeadersX}, map[string]string{"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "1699999999000"},
		"X-RateLimit-Remaining: 3\nX-RateLimit-Reset: 0\n",
	},
	"numbers with parameters": {
		HeaderSets{HeadersDraft06}, map[string]string{"RateLimit-Limit": "10, 10;w=60", "RateLimit-Remaining": "3", "RateLimit-Reset": "6.5"},
		"RateLimit-Limit: 10\nRateLimit-Remaining: 3\nRateLimit-Reset: 7\n",
	},
	"lists, stricter": {
		HeaderSets{HeadersIETF}, map[string]string{"RateLimit": `"up";r=1;t=5`, "RateLimit-Policy": `"up";q=10`},
		"Ratelimit: \"up\";r=1;t=5\nRatelimit-Policy: \"up\";q=10\n",
	},
	"lists, stricter, with a policy that is none": {
		HeaderSets{HeadersIETF}, map[string]string{"RateLimit": `"up";r=1;t=5`, "RateLimit-Policy": `;;`},
		"Ratelimit: \"up\";r=1;t=5\n",
	},
	"lists, nonsense": {
		HeaderSets{HeadersIETF}, map[string]string{"RateLimit": `"up";r=1;t=-5`, "RateLimit-Policy": `;;`}, ourLists,
	},
	"lists without names": {HeaderSets{HeadersIETF}, map[string]string{"RateLimit": `:AAA=:;r=1, 7;r=1`}, ourLists},
	"what drafts before the lists had": {
		HeaderSets{HeadersIETF}, map[string]string{"RateLimit": `limit=10, remaining=2, reset=9`, "RateLimit-Policy": "10;w=60"},
		"RateLimit: \"upstream\";r=2;t=9\nRateLimit-Policy: \"upstream\";q=10\n",
	},
	"stricter in a form that we send in another": {
		HeaderSets{HeadersIETF, HeadersX}, map[string]string{"RateLimit-Limit": "10", "RateLimit-Remaining": "3", "RateLimit-Reset": "7"},
		"RateLimit: \"upstream\";r=3;t=7\nRateLimit-Policy: \"upstream\";q=10\nRatelimit-Limit: 10\nRatelimit-Remaining: 3\nRatelimit-Reset: 7\n" +
			"X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 3\nX-RateLimit-Reset: 7\n",
	},
	"both forms, one of them stricter": {
		HeaderSets{HeadersIETF, HeadersX}, map[string]string{"RateLimit": `"up";r=1;t=5`, "RateLimit-Policy": `"up";q=10`, "X-RateLimit-Remaining": "900"},
		"Ratelimit: \"up\";r=1;t=5\nRatelimit-Policy: \"up\";q=10\nX-RateLimit-Limit: 10\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 5\n",
	},
	"a set that we do not send promises no more than ours": {
		HeaderSets{HeadersIETF}, map[string]string{"X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "900"}, ourLists,
	},
	"headers off: the upstream's are the only ones": {
		HeaderSets{}, map[string]string{"X-RateLimit-Remaining": "900"}, "X-Ratelimit-Remaining: 900\n",
	},
	"an upstream is not us": {HeaderSets{}, map[string]string{"Annona-Degraded": "redis"}, ""},
}

// Case 16: one coherent set, in which the stricter wins; what means nothing never does, and no reset is negative.
func TestCase16_OneCoherentSet(t *testing.T) {
	for name, row := range upstreamsFields {
		t.Run(name, func(t *testing.T) {
			header := http.Header{}
			for field, value := range row.upstream {
				header.Set(field, value)
			}
			testFields(row.sets...).apply(header, halfSpent())
			if got := text(header); got != row.want {
				t.Errorf("headers are\n%swant\n%s", got, row.want)
			}
		})
	}
}

func TestResetOfAnUpstreamAsUnixTime(t *testing.T) {
	f, header := testFields(HeadersX), http.Header{"X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"7"}}
	f.epoch = true
	f.apply(header, halfSpent())
	if got := text(header); got != "X-RateLimit-Remaining: 3\nX-RateLimit-Reset: 1700000007\n" {
		t.Errorf("headers are %s, want the upstream's reset as a time like ours", got)
	}
}

// one returns a field's only value, whatever the spelling of its name.
func one(t *testing.T, header http.Header, name string) string {
	t.Helper()
	values := append(append([]string{}, header[name]...), header[http.CanonicalHeaderKey(name)]...)
	if http.CanonicalHeaderKey(name) == name {
		values = header[name]
	}
	if len(values) > 1 {
		t.Fatalf("%s stands %d times: %q", name, len(values), values)
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Whatever an upstream sends, a client gets fields that can be read, that promise no more than is left, and no negative reset.
func FuzzUpstreamFields(f *testing.F) {
	f.Add("10", "3", "7", `"up";r=1;t=5`, `"up";q=10`, false)
	f.Add("x", "-3", "NaN", `limit=10, remaining=2, reset=-9`, ";;", true)
	f.Add("10, 10;w=60", "3.5", "1700000007", `:AAA=:;r=1`, `(1 2);q=1`, true)
	f.Add("", "999999999999999", "-1.5", `"a";r=0, "b"`, `"a";q=?1`, false)
	f.Fuzz(func(t *testing.T, limit, remaining, reset, list, policy string, epoch bool) {
		fields := testFields(HeadersIETF, HeadersX, HeadersDraft06)
		fields.epoch = epoch
		header := http.Header{
			"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset},
			"Ratelimit-Limit": {remaining}, "Ratelimit-Remaining": {reset}, "Ratelimit-Reset": {limit},
			"Ratelimit": {list}, "Ratelimit-Policy": {policy},
		}
		fields.apply(header, halfSpent())
		var left []int64
		for _, prefix := range prefixes {
			for _, name := range []string{"Limit", "Remaining", "Reset"} {
				text := one(t, header, prefix+name)
				if text == "" && name != "Remaining" {
					continue
				}
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil || n < 0 || (name == "Remaining" && n > 50) {
					t.Fatalf("%s%s: %q", prefix, name, text)
				}
				if name == "Remaining" {
					left = append(left, n)
				}
			}
		}
		limits, err := httpsfv.UnmarshalList([]string{one(t, header, headerLimits)})
		if err != nil || len(limits) == 0 {
			t.Fatalf("RateLimit: %q, %v", one(t, header, headerLimits), err)
		}
		least := int64(50)
		for _, member := range limits {
			it, name := named(member)
			if reset, has := it.Params.Get("t"); name == "" || parameter(it, "r") < 0 || (has && parameter(it, "t") < 0) {
				t.Fatalf("RateLimit has member %v with t=%v", member, reset)
			}
			least = min(least, parameter(it, "r"))
		}
		if left[0] != left[1] || left[0] != least {
			t.Fatalf("the sets tell of %v and %d left: %v", left, least, header)
		}
		if policies := one(t, header, headerPolicies); policies != "" && !isList([]string{policies}) {
			t.Fatalf("RateLimit-Policy: %q", policies)
		}
	})
}

func TestExpose(t *testing.T) {
	for name, row := range map[string]struct {
		header http.Header
		want   string
	}{
		"nothing to read": {http.Header{}, ""},
		"ours":            {http.Header{"RateLimit": {"x"}, "X-RateLimit-Limit": {"1"}, "Retry-After": {"1"}}, "RateLimit, X-RateLimit-Limit, Retry-After"},
		"and the upstream's": {
			http.Header{"RateLimit": {"x"}, "Access-Control-Expose-Headers": {"X-A,ratelimit", " X-B"}}, "X-A, ratelimit, X-B",
		},
		"merged": {
			http.Header{"RateLimit": {"x"}, "RateLimit-Policy": {"x"}, "Access-Control-Expose-Headers": {"X-A", "RateLimit"}},
			"X-A, RateLimit, RateLimit-Policy",
		},
		"a star is none for who sends cookies": {http.Header{"RateLimit": {"x"}, "Access-Control-Expose-Headers": {"*"}}, "*, RateLimit"},
	} {
		before := len(row.header.Values(headerExpose))
		expose(row.header)
		got := row.header.Values(headerExpose)
		if name == "and the upstream's" { // nothing to add: left as it came
			if len(got) != before {
				t.Errorf("%s: %q", name, got)
			}
			continue
		}
		if len(got) > 1 || row.header.Get(headerExpose) != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// Browsers let a script of another origin read only what an answer exposes. A preflight is a request like any other.
func TestScriptsOfAnotherOriginReadTheLimits(t *testing.T) {
	g, charged := gatewayTo(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(headerExpose, "X-Mine") }, nil)
	if got := g.get(t, "/", "X-API-Key", "key-a").Header.Get(headerExpose); got != "X-Mine" {
		t.Errorf("without Origin: %q, want the upstream's own", got)
	}
	a := g.get(t, "/", "X-API-Key", "key-a", "Origin", "https://app.example.com")
	if got, want := a.Header.Get(headerExpose), "X-Mine, RateLimit, RateLimit-Policy, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, "http://"+g.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"X-Api-Key": {"key-a"}, "Origin": {"https://app.example.com"}, "Access-Control-Request-Method": {"PUT"}}
	if a := g.do(t, req); a.StatusCode != http.StatusOK || a.Header.Get("Ratelimit") == "" || charged.Load() != 3 {
		t.Errorf("preflight: status %d, charged %d times in all, want 200 and 3", a.StatusCode, charged.Load())
	}
}
