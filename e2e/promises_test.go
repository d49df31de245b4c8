package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
	"github.com/annona-gateway/annona/e2e/oracle"
)

// everywhere is a stream to the i-th gateway of each region, perSecond in all.
func everywhere(c *cluster.Cluster, i int, key, path string, perSecond float64) []cluster.Target {
	var targets []cluster.Target
	for _, r := range c.Regions {
		targets = append(targets, cluster.Target{
			Gateway: r.Gateways[i], Region: r.Name, Key: key, Path: path, PerSecond: perSecond / float64(len(c.Regions)),
		})
	}
	return targets
}

// bounded fails t if answers break the promised bound, and reports what was admitted, as a share of burst + rate·T.
func bounded(t *testing.T, answers []oracle.Answer, burst, rate float64, duration time.Duration) float64 {
	t.Helper()
	if err := oracle.Bound(answers, burst, rate); err != nil {
		t.Errorf("promise 1: %v", err)
	}
	for _, status := range []int{0, 500, 502, 503} {
		if n := oracle.Count(answers, status); n > 0 {
			t.Errorf("%d answers with status %d, want only 200 and 429", n, status)
		}
	}
	admitted := oracle.Count(answers, http.StatusOK)
	share := float64(admitted) / (burst + rate*duration.Seconds())
	t.Logf("%d of %d admitted, %.1f %% of burst + rate·T", admitted, len(answers), 100*share)
	return share
}

// "Cost admitted in any interval T ≤ C + R·T", and "≥ 99 % of what idle regions do not keep": one user at three times the
// limit in all regions.
func TestPromise1And2OneUserInAllRegions(t *testing.T) {
	c := shared.cluster(t)
	key, duration := freshKey(t), 10*time.Second
	answers := cluster.Run(t.Context(), everywhere(c, 0, key, "/hundred", 150), duration)[key]
	if share := bounded(t, answers, 100, 50, duration); share < 0.95 {
		t.Errorf("admitted %.1f %% of 100 + 50·T, want at least 95 %%", 100*share)
	}
	first := answers[0].Sent
	for _, a := range answers {
		if a.Sent.Before(first) {
			first = a.Sent
		}
	}
	last := oracle.AdmittedBetween(answers, first.Add(duration/2), first.Add(duration))
	t.Logf("last half: %d of %.0f", last, 50*duration.Seconds()/2)
	if share := float64(last) / (50 * duration.Seconds() / 2); share < 0.97 {
		t.Errorf("last 5 s: %.1f %% of 50·T, want at least 97 %%", 100*share)
	}
}

// Demand in one region only: the idle ones keep their allotments and nothing else.
func TestPromise2OneRegionOnly(t *testing.T) {
	c := shared.cluster(t)
	key, duration := freshKey(t), 10*time.Second
	targets := []cluster.Target{{Gateway: c.Regions[1].Gateways[0], Region: "us", Key: key, Path: "/hundred", PerSecond: 150}}
	answers := cluster.Run(t.Context(), targets, duration)[key]
	if share := bounded(t, answers, 100, 50, duration); share < 0.88 {
		t.Errorf("admitted %.1f %% of 100 + 50·T from one region, want at least 88 %%", 100*share)
	}
}

// Many keys at once, each bounded and each served.
func TestPromise1FortyUsersAtOnce(t *testing.T) {
	c := shared.cluster(t)
	duration := 8 * time.Second
	var targets []cluster.Target
	for range 40 {
		targets = append(targets, everywhere(c, 0, freshKey(t), "/small", 15)...)
	}
	for key, answers := range cluster.Run(t.Context(), targets, duration) {
		if share := bounded(t, answers, 10, 5, duration); share < 0.85 {
			t.Errorf("%s: admitted %.1f %% of 10 + 5·T, want at least 85 %%", key, 100*share)
		}
	}
}

// Two gateways of one region share its bucket.
func TestPromise1TwoGatewaysOfOneRegion(t *testing.T) {
	c := shared.cluster(t)
	key, duration := freshKey(t), 6*time.Second
	var targets []cluster.Target
	for _, g := range c.Regions[0].Gateways {
		targets = append(targets, cluster.Target{Gateway: g, Region: "eu", Key: key, Path: "/hundred", PerSecond: 75})
	}
	answers := cluster.Run(t.Context(), targets, duration)[key]
	if share := bounded(t, answers, 100, 50, duration); share < 0.85 {
		t.Errorf("admitted %.1f %% of 100 + 50·T, want at least 85 %%", 100*share)
	}
}

// Case 1: limit 4/min; any order of seven requests over three regions, one by one → exactly 4 admitted.
func TestCase01SevenRequestsOneByOne(t *testing.T) {
	c := shared.cluster(t)
	random := rand.New(rand.NewPCG(1, 1))
	for round := range 6 {
		key := freshKey(t)
		var answers []oracle.Answer
		for range 7 {
			r := c.Regions[random.IntN(len(c.Regions))]
			answers = append(answers, cluster.Get(t.Context(), r.Gateways[random.IntN(2)], r.Name, key, "/four"))
		}
		exactlyFour(t, fmt.Sprintf("round %d", round), answers)
	}
}

// Case 1, all at once.
func TestCase01SevenRequestsAtOnce(t *testing.T) {
	c := shared.cluster(t)
	random := rand.New(rand.NewPCG(2, 2))
	for round := range 6 {
		key := freshKey(t)
		answers := make([]oracle.Answer, 7)
		var wg sync.WaitGroup
		for i := range answers {
			r := c.Regions[random.IntN(len(c.Regions))]
			wg.Go(func() { answers[i] = cluster.Get(t.Context(), r.Gateways[i%2], r.Name, key, "/four") })
		}
		wg.Wait()
		exactlyFour(t, fmt.Sprintf("round %d", round), answers)
	}
}

// Case 1, with a region cut from the allocator: at most 4, and the region that is not cut is served.
func TestCase01OneRegionCut(t *testing.T) {
	c := shared.cluster(t)
	key := freshKey(t)
	eu, us := c.Regions[0], c.Regions[1]
	var answers []oracle.Answer
	for range 2 { // us holds what it was given before the cut
		answers = append(answers, cluster.Get(t.Context(), us.Gateways[0], us.Name, key, "/four"))
	}
	us.Link.Cut()
	for i := range 4 {
		answers = append(answers,
			cluster.Get(t.Context(), us.Gateways[i%2], us.Name, key, "/four"),
			cluster.Get(t.Context(), eu.Gateways[i%2], eu.Name, key, "/four"))
	}
	us.Link.Restore()
	if ok := oracle.Count(answers, http.StatusOK); ok > 4 || ok < 3 {
		t.Errorf("%d admitted, want at most 4, and what the region in contact can have", ok)
	}
	if refused := len(answers) - oracle.Count(answers, 200) - oracle.Count(answers, 429); refused > 0 {
		t.Errorf("%d answers that are neither 200 nor 429: %+v", refused, answers)
	}
	recovers(t, c)
}

// exactlyFour fails t unless four of answers were admitted, the rest denied, and nobody waited longer than lease_wait (500 ms,
// with some room for a busy machine).
func exactlyFour(t *testing.T, round string, answers []oracle.Answer) {
	t.Helper()
	if ok, denied := oracle.Count(answers, 200), oracle.Count(answers, 429); ok != 4 || denied != 3 {
		t.Errorf("%s: %d admitted and %d denied, want 4 and 3: %+v", round, ok, denied, answers)
	}
	for _, a := range answers {
		if waited := a.Answered.Sub(a.Sent); waited > 700*time.Millisecond {
			t.Errorf("%s: an answer took %s, want at most lease_wait", round, waited)
		}
	}
}

// noneDenied fails t for each denied answer, and says when in the run it came and how long it took.
func noneDenied(t *testing.T, answers []oracle.Answer) {
	t.Helper()
	for _, a := range answers {
		if a.Status == http.StatusTooManyRequests {
			t.Errorf("denied below the limit: in %s, %s after the first, after %s", a.Region, a.Sent.Sub(answers[0].Sent), a.Answered.Sub(a.Sent))
		}
	}
}

// Below the limit nothing is denied, wherever the demand is.
func TestPromise2BelowTheLimitNothingIsDenied(t *testing.T) {
	c := shared.cluster(t)
	key, duration := freshKey(t), 6*time.Second
	answers := cluster.Run(t.Context(), everywhere(c, 1, key, "/hundred", 42), duration)[key]
	noneDenied(t, answers)
	bounded(t, answers, 100, 50, duration)
}

// The same for forty users at once, whose requests come at the same instants.
func TestPromise2FortyUsersBelowTheLimit(t *testing.T) {
	c := shared.cluster(t)
	duration := 8 * time.Second
	var targets []cluster.Target
	for range 40 {
		targets = append(targets, everywhere(c, 1, freshKey(t), "/small", 3)...)
	}
	for _, answers := range cluster.Run(t.Context(), targets, duration) {
		bounded(t, answers, 10, 5, duration)
		noneDenied(t, answers)
	}
}

// Case 10: org 10/min over user 5/min; user 1 sends 8, user 2 sends 5 → 5 + 5 admitted: a denied request charges no policy.
func TestCase10DeniedRequestChargesNoPolicy(t *testing.T) {
	c := shared.cluster(t)
	for _, path := range []string{"/org-global", "/org-region"} {
		t.Run(path, func(t *testing.T) {
			for user, sends := range map[string]int{freshKey(t): 8, freshKey(t): 5} {
				var answers []oracle.Answer
				for i := range sends {
					answers = append(answers, cluster.Get(t.Context(), c.Regions[0].Gateways[i%2], "eu", user, path))
				}
				if ok := oracle.Count(answers, 200); ok != 5 {
					t.Errorf("user with %d requests: %d admitted, want 5", sends, ok)
				}
			}
		})
	}
}

// Case 3: limit 1, two gateways of one region in turn, 30 requests → 1 admitted, 29 denied with remaining 0.
func TestCase03TwoGatewaysInTurn(t *testing.T) {
	c := shared.cluster(t)
	key := freshKey(t)
	admitted := 0
	for i := range 30 {
		answer, header, _ := cluster.Fetch(t.Context(), c.Regions[0].Gateways[i%2], "eu", key, "/one")
		if answer.Status == http.StatusOK {
			admitted++
		}
		if remaining := header.Get("X-RateLimit-Remaining"); remaining != "0" {
			t.Errorf("request %d: X-RateLimit-Remaining %q, want 0", i, remaining)
		}
	}
	if admitted != 1 {
		t.Errorf("%d admitted, want 1", admitted)
	}
}
