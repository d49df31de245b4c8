package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

func testFields(sets ...string) fields {
	return fields{
		sets: sets, jitter: 0.1, now: func() time.Time { return time.Unix(1_700_000_000, 0) }, random: func() float64 { return 0.5 },
	}
}

func reportOf(name string, capacity limit.Tokens, rate limit.Rate, remaining limit.Tokens, reset limit.Micros, violated bool) admit.Report {
	return admit.Report{
		Policy: &policy.Policy{Name: name, RateText: "100 per minute"}, Limit: limit.Budget{Capacity: capacity, Rate: rate},
		Remaining: remaining, Reset: reset, Violated: violated,
	}
}

// text writes a header as sorted lines.
func text(header http.Header) string {
	var b strings.Builder
	if err := header.Write(&b); err != nil {
		panic(err)
	}
	return strings.ReplaceAll(b.String(), "\r\n", "\n")
}

const perMinute = 100 * limit.MicroPerToken / 60

// Section 8, field by field.
func TestHeaders(t *testing.T) {
	user := reportOf("api-per-user", 100, perMinute, 50, 30_000_001, false)
	org := reportOf("org", 1000, 1000*limit.MicroPerToken, 900, 100_000, false)
	denied := reportOf("org", 1000, 1000*limit.MicroPerToken, 0, 2_000_000, true)
	for name, row := range map[string]struct {
		sets     HeaderSets
		decision admit.Decision
		want     string
	}{
		"admitted": {
			HeaderSets{HeadersIETF, HeadersX}, admit.Decision{Answer: admit.Admitted, Reports: []admit.Report{user, org}},
			"RateLimit: \"api-per-user\";r=50;t=31, \"org\";r=900;t=1\nRateLimit-Policy: \"api-per-user\";q=100;w=60, \"org\";q=1000;w=1\n" +
				"X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 50\nX-RateLimit-Reset: 31\n",
		},
		"denied": {
			HeaderSets{HeadersX}, admit.Decision{Answer: admit.Denied, Reports: []admit.Report{user, denied}},
			"X-RateLimit-Limit: 1000\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 2\n",
		},
		"draft-06": {
			HeaderSets{HeadersDraft06}, admit.Decision{Answer: admit.Admitted, Reports: []admit.Report{user}},
			"RateLimit-Limit: 100\nRateLimit-Remaining: 50\nRateLimit-Reset: 31\n",
		},
		"off": {nil, admit.Decision{Answer: admit.Admitted, Reports: []admit.Report{user}}, ""},
		"degraded": {
			nil, admit.Decision{Answer: admit.Admitted, Degraded: admit.DegradedRedis, Reports: []admit.Report{user}}, "Annona-Degraded: redis\n",
		},
		"nothing matched": {HeaderSets{HeadersIETF, HeadersX}, admit.Decision{Answer: admit.Admitted}, ""},
		"deny all": {
			HeaderSets{HeadersIETF, HeadersX},
			admit.Decision{Answer: admit.Denied, Reports: []admit.Report{reportOf("none", 0, 0, 0, limit.Never, true)}},
			"RateLimit: \"none\";r=0;t=86400\nRateLimit-Policy: \"none\";q=0;w=86400\n" +
				"X-RateLimit-Limit: 0\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 86400\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{}
			testFields(row.sets...).apply(header, &row.decision)
			if got := text(header); got != row.want {
				t.Errorf("headers are\n%swant\n%s", got, row.want)
			}
		})
	}
}

func TestAtMostEightPoliciesAreListed(t *testing.T) {
	var d admit.Decision
	for range 12 {
		d.Reports = append(d.Reports, reportOf("p", 1, limit.MicroPerToken, 1, 0, false))
	}
	header := http.Header{}
	testFields(HeadersIETF).apply(header, &d)
	if n := strings.Count(text(header), "r="); n != maxListed {
		t.Errorf("%d policies are listed, want %d", n, maxListed)
	}
}

func TestResetAsUnixTime(t *testing.T) {
	f, header := testFields(HeadersX), http.Header{}
	f.epoch = true
	f.apply(header, &admit.Decision{Reports: []admit.Report{reportOf("p", 10, limit.MicroPerToken, 5, 5_000_000, false)}})
	if got := text(header); !strings.HasSuffix(got, "X-RateLimit-Reset: 1700000005\n") {
		t.Errorf("headers are %s, want a reset at 1700000005", got)
	}
}

// A lone client that waits as long as Retry-After says is admitted, whatever bucket and jitter; and it is not sent away for
// longer than its wait, the jitter and the rounding.
func TestRetryAfterIsLongEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := limit.Budget{
			Capacity: limit.Tokens(rapid.Int64Range(1, int64(limit.MaxTokens)).Draw(t, "capacity")),
			Rate:     limit.Rate(rapid.Int64Range(1, int64(limit.MaxRate)).Draw(t, "rate")),
		}
		level := limit.Micro(rapid.Int64Range(-int64(b.Capacity.Micro()), limit.MicroPerToken-1).Draw(t, "level"))
		f := testFields()
		f.jitter = rapid.Float64Range(0, 1).Draw(t, "jitter")
		if rapid.Bool().Draw(t, "without jitter") {
			f.jitter = 0
		}
		random := rapid.Float64Range(0, 0.999999).Draw(t, "random")
		f.random = func() float64 { return random }
		in := b.TimeTo(limit.MicroPerToken - level)
		wait := f.retryAfter(in)
		if wait < 1 {
			t.Fatalf("Retry-After %d, want at least 1", wait)
		}
		if in >= limit.Never {
			return
		}
		if after, _ := b.Refill(level, limit.Micros(wait)*limit.MicrosPerSecond); after < limit.MicroPerToken {
			t.Fatalf("after %d s the level is %d micro-tokens, too little", wait, after)
		}
		if seconds := float64(in) / limit.MicrosPerSecond; float64(wait) > seconds+max(1, f.jitter*seconds)+1 {
			t.Fatalf("Retry-After %d for a wait of %g s", wait, seconds)
		}
	})
}

func TestWindow(t *testing.T) {
	const day = 24 * 60 * 60
	for name, row := range map[string]struct {
		capacity limit.Tokens
		rate     limit.Rate
		want     int64
	}{
		"100 a minute":           {100, perMinute, 60},
		"50 a second, burst 100": {100, 50 * limit.MicroPerToken, 2},
		"3 a second, burst 10":   {10, 3 * limit.MicroPerToken, 4},
		"1000 an hour":           {1000, 1000 * limit.MicroPerToken / 3600, 3600},
		"1000 a day":             {1000, 1000 * limit.MicroPerToken / day, day},
		"7 a minute, burst 100":  {100, 7 * limit.MicroPerToken / 60, 858},
		"nothing":                {0, 0, day},
		"nothing, with a rate":   {0, limit.MicroPerToken, 1},
	} {
		if got := window(limit.Budget{Capacity: row.capacity, Rate: row.rate}); got != row.want {
			t.Errorf("%s: window = %d, want %d", name, got, row.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for name, row := range map[string]struct {
		in     limit.Micros
		jitter float64
		random float64
		want   int64
	}{
		"no jitter":             {11_000_001, 0, 0.9, 12},
		"no jitter, at once":    {0, 0, 0.9, 1},
		"at least 1 s of noise": {1_000_000, 0.1, 0.5, 2},
		"a tenth of the wait":   {100_000_000, 0.1, 0.5, 105},
		"never":                 {limit.Never, 0.1, 0.5, longest},
	} {
		f := testFields()
		f.jitter, f.random = row.jitter, func() float64 { return row.random }
		if got := f.retryAfter(row.in); got != row.want {
			t.Errorf("%s: retryAfter = %d, want %d", name, got, row.want)
		}
	}
}
