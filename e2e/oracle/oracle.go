// Package oracle judges what a client saw: it checks the promised bound from outside, with its own arithmetic and nothing of
// the product's.
package oracle

import (
	"fmt"
	"slices"
	"time"
)

// Answer is one request as its client saw it.
type Answer struct {
	Sent, Answered time.Time
	Status         int
	Region         string
}

// Admitted keeps the answers that were let through.
func Admitted(answers []Answer) []Answer {
	return slices.DeleteFunc(slices.Clone(answers), func(a Answer) bool { return a.Status != 200 })
}

// Count returns how many answers have status.
func Count(answers []Answer, status int) int {
	n := 0
	for _, a := range answers {
		if a.Status == status {
			n++
		}
	}
	return n
}

// Bound checks promise 1 on every interval from one request's sending to another's answer: the requests admitted wholly inside
// an interval of length T are at most burst + rate·T. It returns the worst violation, nil if there is none.
func Bound(answers []Answer, burst, ratePerSecond float64) error {
	admitted := Admitted(answers)
	slices.SortFunc(admitted, func(a, b Answer) int { return a.Answered.Compare(b.Answered) })
	starts := make([]time.Time, len(admitted))
	for i, a := range admitted {
		starts[i] = a.Sent
	}
	var worst error
	excess := 0.0
	for _, start := range starts {
		inside := 0.0
		for _, a := range admitted {
			if a.Sent.Before(start) {
				continue
			}
			inside++
			length := a.Answered.Sub(start).Seconds()
			if over := inside - (burst + ratePerSecond*length); over > excess {
				excess = over
				worst = fmt.Errorf("%.0f admitted in %.3f s, %.2f more than %.0f + %.4g·T allows", inside, length, over, burst, ratePerSecond)
			}
		}
	}
	return worst
}

// AdmittedBetween counts the requests admitted with an answer in [from, to).
func AdmittedBetween(answers []Answer, from, to time.Time) int {
	n := 0
	for _, a := range Admitted(answers) {
		if !a.Answered.Before(from) && a.Answered.Before(to) {
			n++
		}
	}
	return n
}
