package admit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// taker is a Taker of one function, with the requests that it got.
type taker struct {
	answer func(n int, r bucket.Request) (bucket.Verdict, error) // n counts from 1

	mu   sync.Mutex
	got  []bucket.Request
	from []time.Time
	ctx  context.Context //nolint:containedctx // of the last take, for a test to look at
}

func (f *taker) Take(ctx context.Context, r bucket.Request) (bucket.Verdict, error) {
	f.mu.Lock()
	f.got, f.ctx = append(f.got, r), ctx
	f.from = append(f.from, time.Now())
	n := len(f.got)
	f.mu.Unlock()
	return f.answer(n, r)
}

var _ admit.Taker = (*taker)(nil)

// verdict has one state a charge; those of the policies named lack tokens.
func verdict(outcome bucket.Outcome, r bucket.Request, heard limit.Micros, lacking ...string) bucket.Verdict {
	v := bucket.Verdict{Outcome: outcome}
	for _, c := range r.Charges {
		s := bucket.State{PoolAge: -1, Heard: heard}
		for _, name := range lacking {
			if name == c.Policy {
				s.Lacking, s.RetryIn, s.PoolAge = true, 2*limit.MicrosPerSecond, 0
			}
		}
		v.States = append(v.States, s)
	}
	return v
}

func rule(name, scope, onFailure, more string) string {
	text := "  - {name: " + name + ", key: [user], algorithm: token_bucket, rate: 10/s, burst: 100, scope: " + scope + ", on_failure: " + onFailure
	if more != "" {
		text += ", " + more
	}
	return text + "}\n"
}

func document(t *testing.T, rules ...string) *policy.Document {
	t.Helper()
	doc, problems := policy.Parse([]byte("schema: 1\npolicies:\n" + strings.Join(rules, "")))
	if doc == nil {
		t.Fatalf("the test's document: %v", problems)
	}
	return doc
}

func regions() *policy.Regions {
	return &policy.Regions{Revision: 1, Regions: []policy.Region{{Name: "eu", Weight: 1}, {Name: "us", Weight: 1}}, Shards: 4, Times: policy.DefaultTimes()}
}

type bench struct {
	*admit.Admitter

	taker *taker
	tel   *telemetry.Telemetry
}

func newBench(t *testing.T, answer func(int, bucket.Request) (bucket.Verdict, error), rules ...string) *bench {
	t.Helper()
	return newBenchWith(t, admit.Options{Region: "eu"}, regions(), answer, rules...)
}

func newBenchWith(
	t *testing.T, options admit.Options, r *policy.Regions, answer func(int, bucket.Request) (bucket.Verdict, error), rules ...string,
) *bench {
	t.Helper()
	tel, err := telemetry.Start(context.Background(), telemetry.Config{Role: "gateway", Region: "eu", Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := limit.NewSecret([]byte("sixteen bytes at least"))
	if err != nil {
		t.Fatal(err)
	}
	options.Telemetry = tel
	b := &bench{taker: &taker{answer: answer}, tel: tel}
	b.Admitter = admit.New(b.taker, options)
	b.Use(admit.Compile(document(t, rules...), r, "eu", secret))
	return b
}

// use makes a document of these rules the one in use.
func (b *bench) use(t *testing.T, revision uint64, rules ...string) {
	t.Helper()
	secret, err := limit.NewSecret([]byte("sixteen bytes at least"))
	if err != nil {
		t.Fatal(err)
	}
	doc := document(t, rules...)
	doc.Revision = revision
	b.Use(admit.Compile(doc, nil, "eu", secret))
}

func (b *bench) decide(ctx context.Context, t *testing.T) admit.Decision {
	t.Helper()
	d, err := b.Decide(ctx, &policy.Request{Identity: policy.Identity{User: "alice", Tier: "free"}, Method: "GET", Path: "/"})
	if err != nil {
		t.Fatalf("Decide: %v", err)
	}
	return d
}

// pass lets time pass, in a bubble of synctest.
func pass(d time.Duration) { <-time.After(d) }

// metrics is what an operator would scrape.
func (b *bench) metrics() string {
	w := httptest.NewRecorder()
	b.tel.Handler(func(context.Context) []telemetry.Check { return nil }).ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// counted tells whether a metric line has all of parts.
func (b *bench) counted(parts ...string) bool {
	for line := range strings.Lines(b.metrics()) {
		all := !strings.HasPrefix(line, "#")
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}
