package oracle

import (
	"testing"
	"time"
)

// A judge that cannot condemn proves nothing: one request too many is found, wherever it hides in the run.
func TestBoundFindsOneTooMany(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(d time.Duration) Answer {
		return Answer{Sent: start.Add(d), Answered: start.Add(d + time.Millisecond), Status: 200}
	}
	var answers []Answer
	for i := range 10 {
		answers = append(answers, at(time.Duration(i)*time.Second))
	}
	for range 4 { // a burst of 5 with the one already there
		answers = append(answers, at(5*time.Second))
	}
	if err := Bound(answers, 5, 1); err != nil {
		t.Errorf("burst 5, rate 1: %v, want no violation", err)
	}
	if err := Bound(append(answers, at(5*time.Second)), 5, 1); err == nil {
		t.Error("six at once within 2 ms passed for a burst of 5")
	}
	denied := at(5 * time.Second)
	denied.Status = 429
	if err := Bound(append(answers, denied), 5, 1); err != nil {
		t.Errorf("a denied request was counted: %v", err)
	}
}
