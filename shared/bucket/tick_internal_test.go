package bucket

import (
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// look is one reading in a table: seconds of the store's clock, of its tick, and of our monotonic clock.
type look struct{ now, tick, measured float64 }

func (l look) reading(epoch string) *reading {
	start := time.Unix(1000, 0)
	return &reading{
		epoch: epoch, now: limit.Micros(l.now * 1e6), tick: limit.Micros(l.tick * 1e6),
		measured: start.Add(time.Duration(l.measured * float64(time.Second))),
	}
}

// TestE2_WhoMayWriteTheTick: the last of some readings in turn lets a process write the tick, begin an epoch, or neither.
func TestE2_WhoMayWriteTheTick(t *testing.T) {
	for what, row := range map[string]struct {
		looks          []look
		writes, begins bool
		step           time.Duration
	}{
		"the first reading judges nothing":               {[]look{{100, 99, 0}}, false, false, 0},
		"agrees with the reading before":                 {[]look{{100, 99.5, 0}, {101, 99.5, 1}}, true, false, 0},
		"another process' tick is young":                 {[]look{{100, 99.5, 0}, {101, 100.9, 1}}, false, false, 0},
		"within 100 ms":                                  {[]look{{100, 99.5, 0}, {101.09, 99.5, 1}}, true, false, 0},
		"beyond 100 ms":                                  {[]look{{100, 99.5, 0}, {101.11, 99.5, 1}}, false, false, 0},
		"beyond 100 ms behind":                           {[]look{{100, 99.5, 0}, {100.89, 99.5, 1}}, false, false, 0},
		"the whole Redis stood still for 10 s":           {[]look{{100, 99.5, 0}, {110, 99.5, 10}}, true, false, 0},
		"this process stood still for 10 s":              {[]look{{100, 99.5, 0}, {110, 109.9, 10}, {111, 109.9, 11}}, true, false, 0},
		"a small step is forgiven by the next reading":   {[]look{{100, 99.9, 0}, {101.5, 99.9, 1}, {102.5, 100.9, 2}}, true, false, 0},
		"an hour forth, seen once":                       {[]look{{100, 99.5, 0}, {3701, 99.5, 1}}, false, false, 0},
		"an hour forth, seen for a second":               {[]look{{100, 99.5, 0}, {3701, 99.5, 1}, {3702, 99.5, 2}}, false, true, time.Hour},
		"an hour back, seen for a second":                {[]look{{4000, 3999, 0}, {401, 3999, 1}, {402, 3999, 2}}, false, true, 0},
		"restarted: nobody wrote for a second":           {[]look{{110, 99.5, 0}, {111, 99.5, 1}}, false, true, 0},
		"restarted: somebody wrote meanwhile":            {[]look{{110, 99.5, 0}, {111, 110.5, 1}}, false, false, 0},
		"restarted: looked twice within a second":        {[]look{{110, 99.5, 0}, {110.2, 99.5, 0.2}}, false, false, 0},
		"a tick ahead of the clock is nobody's to renew": {[]look{{100, 99.5, 0}, {101, 101.5, 1}}, false, false, 0},
	} {
		w := &witness{}
		var writes, begins bool
		var step time.Duration
		for _, l := range row.looks {
			writes, begins, step = w.judge(l.reading("one"))
		}
		if writes != row.writes || begins != row.begins || step != row.step {
			t.Errorf("%s: judge = (%v, %v, %s), want (%v, %v, %s)", what, writes, begins, step, row.writes, row.begins, row.step)
		}
	}
	w := &witness{}
	w.judge(look{100, 99.5, 0}.reading("one"))
	if writes, _, _ := w.judge(look{101, 99.5, 1}.reading("two")); writes {
		t.Error("a reading of another epoch let the tick be written")
	}
}
