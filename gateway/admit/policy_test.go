package admit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// admitting admits whatever it is asked.
func admitting(_ int, r bucket.Request) (bucket.Verdict, error) {
	return verdict(bucket.Admitted, r, 0), nil
}

func asking(header ...string) *policy.Request {
	r := &policy.Request{Identity: policy.Identity{User: "alice", Tier: "free"}, Method: "POST", Path: "/v1/x"}
	if len(header) == 2 {
		r.Header = http.Header{header[0]: {header[1]}}
	}
	return r
}

const rules = "cost: {default: 2, rules: [{methods: [POST], cost: 5}], header: X-Cost, max: 50}"

func TestDecideChargesTheCost(t *testing.T) {
	b := newBench(t, admitting, rule("p", "global", "closed", rules))
	trusted := asking("X-Cost", "7")
	trusted.TrustedPeer = true
	for want, r := range map[limit.Tokens]*policy.Request{5: asking("X-Cost", "9"), 7: trusted} {
		if d, err := b.Decide(t.Context(), r); err != nil || d.Answer != admit.Admitted {
			t.Fatalf("Decide = %+v, %v", d, err)
		}
		got := b.taker.got[len(b.taker.got)-1].Charges[0]
		// A1: eu's allotment would be 5 tokens, below the largest cost, so all of the budget is the pool's.
		if got.Cost != want || got.Part.Capacity != 0 || got.Pool.Capacity != 100 {
			t.Errorf("the take charges %+v, want cost %d, no part, a pool of 100", got, want)
		}
	}
	trusted.Header["X-Cost"][0] = "-7"
	before := len(b.taker.got)
	if d, err := b.Decide(t.Context(), trusted); !errors.Is(err, policy.ErrCost) || len(b.taker.got) != before {
		t.Errorf("Decide of a negative cost = %+v, %v", d, err)
	}
}

func TestDecideTellsWhenAndWhere(t *testing.T) {
	b := newBench(t, admitting,
		rule("p", "global", "closed", "overrides: [{key: {user: alice}, rate: 500/min, until: 2999-01-01T00:00:00Z}, {key: {user: alice}, rate: 7/min, from: 2999-01-01T00:00:00Z}]"),
		rule("here", "region", "closed", "match: {regions: [eu, ap]}"), rule("there", "region", "closed", "match: {regions: [us, ap]}"))
	later := asking()
	later.At = time.Date(2999, 6, 1, 0, 0, 0, 0, time.UTC)
	for capacity, r := range map[limit.Tokens]*policy.Request{500: asking(), 7: later} {
		d, err := b.Decide(t.Context(), r)
		if err != nil || len(d.Reports) != 2 || d.Reports[1].Policy.Name != "here" {
			t.Fatalf("Decide = %+v, %v, want p and here", d, err)
		}
		if got := d.Reports[0]; got.Limit.Capacity != capacity || got.Rate() != map[limit.Tokens]string{500: "500 per minute", 7: "7 per minute"}[capacity] {
			t.Errorf("the report says %+v, %s, want capacity %d", got, got.Rate(), capacity)
		}
		charge := b.taker.got[len(b.taker.got)-1].Charges[0]
		if charge.Variant != d.Reports[0].Variant || charge.Part.Capacity+charge.Pool.Capacity > capacity || charge.Pool.Capacity == 0 {
			t.Errorf("the take charges %+v", charge)
		}
	}
}

// A part of the keys is enforced: the others are asked too, and what that says denies nobody.
func TestDecideEnforcesAPartOfTheKeys(t *testing.T) {
	denying := func(_ int, r bucket.Request) (bucket.Verdict, error) { return verdict(bucket.Denied, r, 0, "p"), nil }
	b := newBench(t, denying, rule("p", "region", "closed", "enforce: 50%"))
	answers := map[admit.Answer]int{}
	for range 2 {
		for _, user := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
			d, err := b.Decide(t.Context(), &policy.Request{Identity: policy.Identity{User: user}, Method: "GET", Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			answers[d.Answer]++
		}
	}
	if answers[admit.Admitted] == 0 || answers[admit.Denied] == 0 || answers[admit.Denied]%2 != 0 ||
		len(b.taker.got) != answers[admit.Admitted]+answers[admit.Denied]/2 { // the second denial of a key is from memory
		t.Errorf("of 12 keys asked twice: %v, and %d takes", answers, len(b.taker.got))
	}
	if !b.counted("annona_decisions", `outcome="shadow_denied"`) {
		t.Error("no shadow denial is counted")
	}
}

func TestDecideExempts(t *testing.T) {
	b := newBench(t, admitting, rule("p", "region", "closed", ""))
	doc, problems := policy.Parse([]byte("schema: 1\nexempt: [{user: alice}]\npolicies:\n" + rule("p", "region", "closed", "missing: deny")))
	if doc == nil {
		t.Fatal(problems)
	}
	secret, err := limit.NewSecret([]byte("sixteen bytes at least"))
	if err != nil {
		t.Fatal(err)
	}
	b.Use(admit.Compile(doc, regions(), "eu", secret))
	if d, err := b.Decide(t.Context(), asking()); err != nil || d.Answer != admit.Admitted || len(d.Reports) != 0 || len(b.taker.got) != 0 {
		t.Errorf("Decide of an exempt client = %+v, %v with %d takes", d, err, len(b.taker.got))
	}
}

func TestStripCosts(t *testing.T) {
	fresh := admit.New(nil, admit.Options{Telemetry: telemetry.ForTest(io.Discard)})
	fresh.StripCosts(http.Header{}, false) // without a document nothing is known
	b := newBench(t, admitting, rule("p", "global", "closed", rules))
	header := http.Header{"X-Cost": {"7"}, "X_cost": {"7"}, "X-Other": {"1"}}
	if b.StripCosts(header, false); len(header) != 1 || header.Get("X-Other") != "1" {
		t.Errorf("StripCosts leaves %v", header)
	}
	// What only upstreams say nobody else says, for one that sends back what it was sent would believe clients what they pay.
	b = newBench(t, admitting, rule("p", "region", "closed", "cost: {header: X-Cost, max: 9, actual: X-Actual-Cost}"))
	header = http.Header{"X-Cost": {"7"}, "X-Actual-Cost": {"0"}}
	if b.StripCosts(header, true); len(header) != 1 || header.Get("X-Cost") != "7" {
		t.Errorf("of a trusted peer StripCosts leaves %v", header)
	}
}

// A request that began under an older document than the one whose numbers are in force is decided by the new one: a change of
// limits is no outage.
func TestDecideAgainByTheNewerDocument(t *testing.T) {
	newer := newBench(t, admitting, rule("p", "region", "open", "")).Snapshot()
	var b *bench
	b = newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
		if n == 1 {
			time.AfterFunc(50*time.Millisecond, func() { b.Use(newer) })
			return bucket.Verdict{}, fmt.Errorf("%w: %w", bucket.ErrCouldNotAsk, bucket.ErrOlderRevision)
		}
		return verdict(bucket.Admitted, r, 0), nil
	}, rule("p", "region", "open", ""))
	synctest.Test(t, func(t *testing.T) {
		if d := b.decide(t.Context(), t); d.Answer != admit.Admitted || d.Degraded != "" {
			t.Errorf("Decide = %+v, want admitted, not degraded", d)
		}
		if len(b.taker.got) != 2 {
			t.Errorf("%d takes, want two", len(b.taker.got))
		}
	})
}

// Without a newer one the failure modes decide, after a bounded wait.
func TestDecideWithoutTheNewerDocument(t *testing.T) {
	b := newBench(t, func(int, bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{}, fmt.Errorf("%w: %w", bucket.ErrCouldNotAsk, bucket.ErrOlderRevision)
	}, rule("p", "region", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := b.decide(t.Context(), t)
		if waited := time.Since(start); d.Answer != admit.Refused || waited != 500*time.Millisecond {
			t.Errorf("Decide = %v after %v, want refused after 500ms", d.Answer, waited)
		}
	})
}
