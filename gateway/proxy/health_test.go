package proxy

import (
	"testing"
	"time"
)

// An upstream that fails three times in a row is left out for a time that grows to a bound, is tried by one request, and comes
// back with an answer.
func TestPassiveHealth(t *testing.T) {
	u, now := &upstream{}, time.Unix(1_700_000_000, 0)
	fail := func() (time.Duration, bool) { return u.ended(failedIt, now) }
	for i := range failuresUntilOut - 1 {
		if out, _ := fail(); out != 0 || !u.take(now) {
			t.Fatalf("out after %d failures", i+1)
		}
	}
	u.ended(answeredIt, now)
	for range failuresUntilOut - 1 {
		fail()
	}
	u.ended(saysNothing, now)
	if !u.take(now) {
		t.Fatal("failures that were not in a row put it out")
	}
	for _, seconds := range []int{1, 2, 4, 8, 16, 30, 30} {
		out, changed := fail()
		if out != time.Duration(seconds)*time.Second || !changed {
			t.Fatalf("left out for %v, want %d s", out, seconds)
		}
		if late, changed := fail(); late != out || changed {
			t.Fatal("a request that was under way made it longer")
		}
		if now = now.Add(out - 1); u.take(now) {
			t.Fatalf("tried before %v", out)
		}
		if now = now.Add(1); !u.take(now) || u.take(now) {
			t.Fatalf("after %v not exactly one request tries it", out)
		}
	}
	u.ended(saysNothing, now) // the client of the try went away
	if !u.take(now) {
		t.Fatal("a try that said nothing is not made again")
	}
	if out, changed := u.ended(answeredIt, now); out != 0 || !changed || !u.take(now) || !u.take(now) {
		t.Fatal("an answer does not bring it back")
	}
	if out, _ := fail(); out != 0 {
		t.Fatal("one failure after it was back put it out")
	}
}

func TestAllOutIsTriedAnyway(t *testing.T) {
	now := time.Now()
	u := &upstreams{all: []*upstream{{}, {}}}
	for range failuresUntilOut {
		u.all[0].ended(failedIt, now.Add(10*time.Second))
		u.all[1].ended(failedIt, now)
	}
	if got := u.pick(nil); got != u.all[1] {
		t.Error("not the one that is to be tried soonest")
	}
	if got := u.pick([]*upstream{u.all[1]}); got != u.all[0] {
		t.Error("not the one that was not tried yet")
	}
}
