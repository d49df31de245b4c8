package admit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const banning = "ban: {denials: 5, within: 1m, for: 10m}"

// denials are what a take tells the ban of the policy own of denials from memory.
func denials(r bucket.Request) int {
	for _, c := range r.Charges {
		if c.Policy == "own" {
			return c.Denials
		}
	}
	return -1
}

// Denials from memory count towards a ban once, however many takes the next request needs.
func TestBan_DenialsFromMemoryCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
			if n == 2 {
				return verdict(bucket.Wait, r, 0, "leased"), nil
			}
			return verdict(bucket.Denied, r, 0, "own"), nil
		}, rule("own", "region", "closed", banning), rule("leased", "global", "closed", ""))
		for range 4 { // one that asks, three from memory
			b.decide(t.Context(), t)
		}
		pass(1100 * time.Millisecond)
		b.decide(t.Context(), t)
		if len(b.taker.got) != 3 || denials(b.taker.got[1]) != 3 || denials(b.taker.got[2]) != 0 {
			t.Errorf("%d takes told of %d, then %d denials; want 3, then 0", len(b.taker.got), denials(b.taker.got[1]), denials(b.taker.got[2]))
		}
	})
}

// What only reports bans nobody: its clients were never denied.
func TestBan_NotByWhatOnlyReports(t *testing.T) {
	b := newBench(t, func(_ int, r bucket.Request) (bucket.Verdict, error) { return verdict(bucket.Admitted, r, 0), nil },
		rule("current", "region", "closed", banning), rule("shade", "region", "closed", "enforce: 0%, "+banning),
		rule("next", "region", "closed", "candidate_of: current, "+banning))
	bans := func() (names []string) {
		for _, r := range b.taker.got {
			for _, c := range r.Charges {
				if c.Ban != (bucket.Ban{}) {
					names = append(names, c.Policy)
				}
			}
		}
		b.taker.got = nil
		return names
	}
	b.decide(t.Context(), t)
	if got := bans(); len(got) != 1 || got[0] != "current" {
		t.Errorf("bans by %v, want current only", got)
	}
	b.SetShadow(true)
	b.decide(t.Context(), t)
	if got := bans(); len(got) != 0 {
		t.Errorf("with the red button: bans by %v", got)
	}
	if _, _, err := b.Check(t.Context(), admit.Query{Request: &policy.Request{Identity: policy.Identity{User: "alice"}}}); err != nil || len(bans()) != 0 {
		t.Errorf("checks with the red button ban, or %v", err)
	}
}

// Who is banned is told so by a check, too, whether or not it looks only.
func TestBan_ShowsInChecks(t *testing.T) {
	b := newBench(t, func(_ int, r bucket.Request) (bucket.Verdict, error) {
		v := verdict(bucket.Banned, r, 0)
		v.States[0].Banned, v.States[0].RetryIn, v.States[0].Remaining = 90*limit.MicrosPerSecond, 90*limit.MicrosPerSecond, 100
		v.States[0].Level = limit.Tokens(100).Micro()
		return v, nil
	}, rule("p", "region", "closed", banning))
	for _, peek := range []bool{true, false} {
		d, all, err := b.Check(t.Context(), admit.Query{Request: &policy.Request{Identity: policy.Identity{User: "alice"}}, Peek: peek})
		if err != nil || d.Answer != admit.Denied || len(all) != 1 || all[0].Allowed || all[0].RetryIn < 89*limit.MicrosPerSecond || all[0].Remaining != 0 {
			t.Errorf("peek %t: %v %+v %v, want denied for 90 s", peek, d.Answer, all, err)
		}
	}
}

// With nothing enforced there is nothing that a candidate could be compared with, and a region in trouble is asked no more than needed.
func TestCandidateRestsWithTheRedButton(t *testing.T) {
	b := newBench(t, func(_ int, r bucket.Request) (bucket.Verdict, error) { return verdict(bucket.Admitted, r, 0), nil },
		rule("current", "region", "closed", ""), rule("next", "region", "closed", "candidate_of: current"))
	b.decide(t.Context(), t)
	b.SetShadow(true)
	b.decide(t.Context(), t)
	if got := b.Rollouts(); len(got) != 1 || got[0].Requests != 1 || len(b.taker.got) != 3 {
		t.Errorf("%+v after %d takes, want one request compared, by 3", got, len(b.taker.got))
	}
}

// A look at a queue tells when a cost fits after those who stand in it.
func TestPeek_BehindAQueue(t *testing.T) {
	b := newBench(t, func(_ int, r bucket.Request) (bucket.Verdict, error) {
		v := verdict(bucket.Admitted, r, 0)
		v.States[0].Level = -limit.Tokens(30).Micro()
		return v, nil
	}, "  - {name: q, key: [user], algorithm: token_bucket, rate: 10/s, burst: 5, max_delay: 10s, scope: region, on_failure: closed}\n")
	_, all, err := b.Check(t.Context(), admit.Query{Request: &policy.Request{Identity: policy.Identity{User: "alice"}}, Peek: true})
	if err != nil || len(all) != 1 || all[0].Allowed || all[0].RetryIn != 3_100_000 {
		t.Errorf("%+v, %v; want 3.1 s: 31 tokens at 10 a second", all, err)
	}
}
