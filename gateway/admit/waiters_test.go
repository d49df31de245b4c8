package admit

import (
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// A fill wakes the oldest, and each one that goes wakes the next; who came after the fill is left to the next one.
func TestTheOldestWaiterIsWokenFirst(t *testing.T) {
	var w waiters
	key, start := limit.Key{1}, time.Now()
	line := make([]*place, 4)
	join := func(i int, age time.Duration) {
		line[i] = &place{wake: make(chan struct{}, 1), since: start.Add(-age), seen: w.seen([]limit.Key{key})[0]}
		if !w.slot(key).join(key, line[i]) {
			t.Fatalf("place %d did not join", i)
		}
	}
	woken := func() (places []int) {
		for i, p := range line {
			if p != nil && len(p.wake) == 1 {
				places = append(places, i)
			}
		}
		return places
	}
	join(0, 2*time.Millisecond)
	join(1, 3*time.Millisecond)
	join(2, time.Millisecond)
	w.filled(key)
	join(3, 9*time.Millisecond) // the oldest of all, but it knows of the fill
	for _, want := range []int{1, 0, 2} {
		if got := woken(); len(got) != 1 || got[0] != want {
			t.Fatalf("woken: %v, want only %d", got, want)
		}
		<-line[want].wake
		w.slot(key).leave(key, line[want])
	}
	if got := woken(); len(got) != 0 {
		t.Errorf("woken: %v, want nobody: the fourth waits for another fill", got)
	}
	w.slot(key).leave(key, line[3])
	if n := len(w.slot(key).mu.waiting); n != 0 {
		t.Errorf("%d lines are left, want none", n)
	}
}

// One that gives up after it was woken wakes the next all the same: the tokens that it leaves are theirs.
func TestAWokenWaiterThatGivesUpWakesTheNext(t *testing.T) {
	var w waiters
	key := limit.Key{1}
	first := &place{wake: make(chan struct{}, 1), since: time.Now()}
	second := &place{wake: make(chan struct{}, 1), since: first.since.Add(1)}
	for _, p := range []*place{first, second} {
		if !w.slot(key).join(key, p) {
			t.Fatal("did not join")
		}
	}
	w.filled(key)
	w.slot(key).leave(key, first) // at its deadline, the wake unread
	if len(second.wake) != 1 {
		t.Error("the second was not woken")
	}
}
