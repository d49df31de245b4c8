package admit_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
)

// errGone is a take that was never sent.
var errGone = fmt.Errorf("%w: %w", bucket.ErrCouldNotAsk, &net.OpError{Op: "dial", Err: errors.New("connection refused")})

func always(outcome bucket.Outcome, lacking ...string) func(int, bucket.Request) (bucket.Verdict, error) {
	return func(_ int, r bucket.Request) (bucket.Verdict, error) { return verdict(outcome, r, 0, lacking...), nil }
}

func gone(int, bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, errGone }

func TestThreeAnswers(t *testing.T) {
	for name, row := range map[string]struct {
		answer   func(int, bucket.Request) (bucket.Verdict, error)
		rules    []string
		want     admit.Answer
		degraded string
		metric   string
	}{
		"admitted":              {always(bucket.Admitted), []string{rule("p", "region", "closed", "")}, admit.Admitted, "", "admitted"},
		"denied":                {always(bucket.Denied, "p"), []string{rule("p", "region", "closed", "")}, admit.Denied, "", "denied"},
		"redis out, closed":     {gone, []string{rule("p", "region", "closed", "")}, admit.Refused, "", "refused"},
		"redis out, local":      {gone, []string{rule("p", "region", "{redis: local}", "")}, admit.Refused, "", "refused"},
		"redis out, open":       {gone, []string{rule("p", "region", "{redis: open}", "")}, admit.Admitted, "redis", "open"},
		"redis out, one closed": {gone, []string{rule("p", "region", "{redis: open}", ""), rule("q", "region", "closed", "")}, admit.Refused, "", "refused"},
		"redis out, shadow closed": {
			gone, []string{rule("p", "region", "{redis: open}", ""), rule("q", "region", "closed", "enforce: 0%")}, admit.Admitted, "redis", "open",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, row.answer, row.rules...)
			d := b.decide(t.Context(), t)
			if d.Answer != row.want || d.Degraded != row.degraded {
				t.Errorf("Decide = %v degraded %q (%v), want %v degraded %q", d.Answer, d.Degraded, d.Cause, row.want, row.degraded)
			}
			if !b.counted("annona_decisions", `policy="p"`, `outcome="`+row.metric+`"`, `region="eu"`) {
				t.Errorf("no decision counted as %s:\n%s", row.metric, b.metrics())
			}
		})
	}
}

// What was never asked says nothing about what is left: a refused client hears that nothing can be spent, an open one the whole.
func TestUnknownStandsAreToldAsTheModeAnswers(t *testing.T) {
	refused := newBench(t, gone, rule("p", "region", "closed", "")).decide(t.Context(), t)
	if len(refused.Reports) != 1 || refused.Reports[0].Remaining != 0 || refused.Reports[0].Reset == 0 {
		t.Errorf("refused reports = %+v, want remaining 0 and a reset", refused.Reports)
	}
	open := newBench(t, gone, rule("p", "region", "{redis: open}", "")).decide(t.Context(), t)
	if len(open.Reports) != 1 || open.Reports[0].Remaining != 100 {
		t.Errorf("open reports = %+v, want all of 100 remaining", open.Reports)
	}
}

func TestMissingIdentityIsNoDecision(t *testing.T) {
	b := newBench(t, always(bucket.Admitted), rule("p", "region", "closed", "missing: deny"))
	if _, err := b.Decide(t.Context(), &policy.Request{}); !errors.Is(err, policy.ErrMissing) {
		t.Errorf("Decide = %v, want %v", err, policy.ErrMissing)
	}
	if len(b.taker.got) != 0 {
		t.Error("a request that is refused for its identity was charged")
	}
}

func TestNothingMatches(t *testing.T) {
	b := newBench(t, gone, rule("p", "region", "closed", "match: {methods: [POST]}"))
	if d := b.decide(t.Context(), t); d.Answer != admit.Admitted || len(d.Reports) != 0 || len(b.taker.got) != 0 {
		t.Errorf("Decide = %+v after %d takes, want admitted, untouched", d, len(b.taker.got))
	}
}

func TestMoreMatchesThanAScriptTakesAreRefused(t *testing.T) {
	rules := make([]string, 0, policy.MaxMatches+1)
	for i := range policy.MaxMatches + 1 {
		rules = append(rules, rule(fmt.Sprintf("p%d", i), "region", "{redis: open}", ""))
	}
	if d := newBench(t, always(bucket.Admitted), rules...).decide(t.Context(), t); d.Answer != admit.Refused || !errors.Is(d.Cause, admit.ErrManyMatches) {
		t.Errorf("Decide = %v, %v, want refused", d.Answer, d.Cause)
	}
}

func TestNoDocumentIsRefused(t *testing.T) {
	b := newBench(t, always(bucket.Admitted), rule("p", "region", "closed", ""))
	fresh := admit.New(b.taker, admit.Options{Telemetry: b.tel})
	if d, err := fresh.Decide(t.Context(), &policy.Request{}); err != nil || d.Answer != admit.Refused {
		t.Errorf("Decide = %v, %v, want refused", d.Answer, err)
	}
}

// Without a regions document nobody knows this region's part of a global budget; scope region needs none.
func TestGlobalPolicyWithoutRegionsCannotBeAsked(t *testing.T) {
	local := newBenchWith(t, admit.Options{Region: "eu"}, nil, always(bucket.Admitted), rule("r", "region", "closed", ""))
	if d := local.decide(t.Context(), t); d.Answer != admit.Admitted {
		t.Errorf("scope region: Decide = %v, want admitted", d.Answer)
	}
	b := newBenchWith(t, admit.Options{Region: "eu"}, nil, always(bucket.Admitted), rule("g", "global", "closed", ""), rule("r", "region", "closed", ""))
	if d := b.decide(t.Context(), t); d.Answer != admit.Refused || len(b.taker.got) != 0 {
		t.Errorf("scope global: Decide = %v after %d takes, want refused, untouched", d.Answer, len(b.taker.got))
	}
	if names, why := b.Snapshot().Unserved(); len(names) != 1 || names[0] != "g" || why == "" {
		t.Errorf("Unserved = %v, %q, want g and a reason", names, why)
	}
}

func TestShadowIsTakenApartAndDeniesNobody(t *testing.T) {
	answer := func(_ int, r bucket.Request) (bucket.Verdict, error) {
		if r.Charges[0].Policy == "shade" {
			return verdict(bucket.Denied, r, 0, "shade"), nil
		}
		return verdict(bucket.Admitted, r, 0), nil
	}
	b := newBench(t, answer, rule("shade", "global", "closed", "enforce: 0%"), rule("p", "region", "closed", ""))
	d := b.decide(t.Context(), t)
	if d.Answer != admit.Admitted || len(d.Reports) != 1 || d.Reports[0].Policy.Name != "p" {
		t.Errorf("Decide = %+v, want admitted with a report of p only", d)
	}
	if len(b.taker.got) != 2 || b.taker.got[1].MayWait || len(b.taker.got[0].Charges) != 1 {
		t.Errorf("takes = %+v, want one of p and one of the shadow that may not wait", b.taker.got)
	}
	if !b.counted("annona_decisions", `policy="shade"`, `outcome="shadow_denied"`) {
		t.Errorf("shadow_denied is not counted:\n%s", b.metrics())
	}
}

func TestShadowIsNotChargedForADeniedRequest(t *testing.T) {
	b := newBench(t, always(bucket.Denied, "p"), rule("shade", "region", "closed", "enforce: 0%"), rule("p", "region", "closed", ""))
	if d := b.decide(t.Context(), t); d.Answer != admit.Denied || len(b.taker.got) != 1 {
		t.Errorf("Decide = %v after %d takes, want denied after one", d.Answer, len(b.taker.got))
	}
}

// The local red button: nothing is denied, everything is still counted.
func TestRedButton(t *testing.T) {
	b := newBenchWith(t, admit.Options{Region: "eu", Shadow: true}, regions(), always(bucket.Denied, "p"), rule("p", "global", "closed", "missing: deny"))
	if d := b.decide(t.Context(), t); d.Answer != admit.Admitted || len(d.Reports) != 0 {
		t.Errorf("Decide = %+v, want admitted without reports", d)
	}
	if d, err := b.Decide(t.Context(), &policy.Request{}); err != nil || d.Answer != admit.Admitted {
		t.Errorf("without identity: Decide = %v, %v, want admitted", d.Answer, err)
	}
}

// Parts add up: what the charges say is what this region and the pool hold.
func TestChargesCarryPartsOfTheVariant(t *testing.T) {
	b := newBench(t, always(bucket.Admitted), rule("g", "global", "closed", "allotment: 10%, tiers: {free: {rate: 20/s, burst: 1000}}"), rule("r", "region", "closed", ""))
	b.decide(t.Context(), t)
	g, r := b.taker.got[0].Charges[0], b.taker.got[0].Charges[1]
	if !g.Leased || g.Part.Capacity != 50 || g.Pool.Capacity != 900 || g.Variant != "tier:free" {
		t.Errorf("global charge = %+v, want 50 of its own and a pool of 900", g)
	}
	if r.Leased || r.Part.Capacity != 100 || r.Pool.Capacity != 0 {
		t.Errorf("region charge = %+v, want all 100 and no pool", r)
	}
	if g.Key == r.Key || g.Shard != g.Key.Shard(4) || strings.Contains(string(g.Sealed), "alice") {
		t.Error("charges share a key, are in a wrong shard, or show the identity")
	}
}
