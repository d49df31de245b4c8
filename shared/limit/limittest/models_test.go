package limittest

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/shared/limit"
)

const (
	second = limit.Micros(limit.MicrosPerSecond)
	minute = 60 * second
)

func minutes(t testing.TB) limit.Window {
	t.Helper()
	w, err := limit.Every(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// limiter is what the models of all algorithms have in common.
type limiter interface {
	Take(at limit.Micros, cost limit.Tokens) Answer
}

// bunch takes one token so many times at one instant and returns how many were admitted.
func bunch(l limiter, at limit.Micros, times int) int {
	admitted := 0
	for range times {
		if l.Take(at, 1).Admitted {
			admitted++
		}
	}
	return admitted
}

// TestGolden_ABucketOfTwenty: capacity 20 and 5/s are 20 at once, 5 after 1 s, 20 after an idle hour.
func TestGolden_ABucketOfTwenty(t *testing.T) {
	b := &Bucket{Budget: limit.Budget{Capacity: 20, Rate: 5 * limit.MicroPerToken}}
	for _, step := range []struct {
		at   limit.Micros
		want int
	}{{0, 20}, {second, 5}, {second + 3600*second, 20}} {
		if got := bunch(b, step.at, 100); got != step.want {
			t.Errorf("at %d µs %d are admitted, want %d", step.at, got, step.want)
		}
	}
}

// TestGolden_TheEstimate: previous 80, current 20, 15 s into a minute: one more only if the limit is 81 or more.
func TestGolden_TheEstimate(t *testing.T) {
	for n, want := range map[limit.Tokens]bool{80: false, 81: true} {
		c := &Counter{N: n, Length: minute}
		if got := bunch(c, 10*minute, 80); got != 80 {
			t.Fatalf("the window before counts %d", got)
		}
		c.N = 100 // so that 20 fit
		if got := bunch(c, 11*minute+15*second, 20); got != 20 {
			t.Fatalf("this window counts %d", got)
		}
		c.N = n
		if a := c.Take(11*minute+15*second, 1); a.Admitted != want {
			t.Errorf("one more of %d is %+v, want admitted %t", n, a, want)
		}
	}
}

// TestLog_AnEntryExactlyAWindowOldIsOut, and one a microsecond younger is not.
func TestLog_AnEntryExactlyAWindowOldIsOut(t *testing.T) {
	for at, want := range map[limit.Micros]bool{minute - 1: false, minute: true} {
		l := &Log{N: 1, Length: minute}
		l.Take(0, 1)
		if a := l.Take(at, 1); a.Admitted != want {
			t.Errorf("after %d µs: %+v, want admitted %t", at, a, want)
		}
	}
}

// TestFixedWindow_AClockThatGoesBackReopensNothing.
func TestFixedWindow_AClockThatGoesBackReopensNothing(t *testing.T) {
	f := &FixedWindow{N: 5, Window: minutes(t)}
	if got := bunch(f, 10*minute, 9); got != 5 {
		t.Fatalf("%d are admitted", got)
	}
	if got := bunch(f, 10*minute-1, 9) + bunch(f, 3*minute, 9); got != 0 {
		t.Errorf("%d are admitted in windows before the latest", got)
	}
	if got := bunch(f, 11*minute, 9); got != 5 {
		t.Errorf("%d are admitted in the next window", got)
	}
}

// asked is one take of a random test: how much later, negative where the clock goes back, and its cost.
type asked struct {
	later limit.Micros
	cost  limit.Tokens
}

func anyAsked(t *rapid.T) []asked {
	later := rapid.OneOf(
		rapid.Just[int64](0), rapid.Int64Range(0, int64(minute)/10), rapid.Int64Range(-int64(minute), 3*int64(minute)),
		rapid.SampledFrom([]int64{int64(minute), int64(minute) - 1, int64(minute) + 1}))
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) asked {
		return asked{limit.Micros(later.Draw(t, "later")), limit.Tokens(rapid.Int64Range(0, 5).Draw(t, "cost"))}
	}), 1, 60).Draw(t, "asked")
}

const began limit.Micros = 1000 * 24 * 60 * minute // of random tests

// play asks l in turn, with a clock that never shows less than it did (what models do with others is stand still); it returns
// what was admitted when, waits included. It fails where a denied request is told another time than it needs.
func play(t *rapid.T, l func() limiter, all []asked) []Taken {
	played, now := l(), began
	var taken []Taken
	var clock []Taken
	for _, q := range all {
		now = max(began, now+q.later)
		clock = append(clock, Taken{now, q.cost})
		a := played.Take(now, q.cost)
		if a.Remaining < 0 || a.RetryIn < 0 || a.Reset < 0 || a.Delay < 0 || a.Admitted && a.RetryIn != 0 {
			t.Fatalf("Take(%d, %d) = %+v", now, q.cost, a)
		}
		if a.Admitted {
			if q.cost > 0 {
				taken = append(taken, Taken{now + a.Delay, q.cost})
			}
			continue
		}
		sooner := limit.Micros(1)
		if _, refilled := played.(*Bucket); refilled {
			sooner = 2 // what a part of a refill took is rounded up
		}
		for in, want := range map[limit.Micros]bool{a.RetryIn: true, a.RetryIn - sooner: false} {
			if again := replay(l(), clock); a.RetryIn < limit.Never && again.Take(now+in, q.cost).Admitted != want {
				t.Fatalf("%+v: told to retry in %d µs, after %d it is admitted: %t", q, a.RetryIn, in, !want)
			}
		}
	}
	return taken
}

func replay(l limiter, all []Taken) limiter {
	for _, q := range all {
		l.Take(q.At, q.Cost)
	}
	return l
}

func anyN(t *rapid.T) limit.Tokens { return limit.Tokens(rapid.Int64Range(0, 12).Draw(t, "n")) }

func TestFixedWindow_KeepsItsPromise(t *testing.T) {
	w := minutes(t)
	rapid.Check(t, func(t *rapid.T) {
		n, sums := anyN(t), map[limit.Micros]limit.Tokens{}
		for _, taken := range play(t, func() limiter { return &FixedWindow{N: n, Window: w} }, onward(anyAsked(t))) {
			if sums[taken.At/minute] += taken.Cost; sums[taken.At/minute] > n {
				t.Fatalf("%d in one window, want at most %d", sums[taken.At/minute], n)
			}
		}
	})
}

func TestLog_KeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := anyN(t)
		if most := Most(play(t, func() limiter { return &Log{N: n, Length: minute} }, onward(anyAsked(t))), minute); most > n {
			t.Fatalf("%d in a minute, want at most %d", most, n)
		}
	})
}

// TestCounter_KeepsItsPromise: less than 2N in any (t − W, t].
func TestCounter_KeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := anyN(t)
		most := Most(play(t, func() limiter { return &Counter{N: n, Length: minute} }, onward(anyAsked(t))), minute)
		if most > 0 && most >= 2*n {
			t.Fatalf("%d in a minute, want less than %d", most, 2*n)
		}
	})
}

// onward makes clocks that go back stand still: intervals of time mean nothing on others.
func onward(all []asked) []asked {
	for i := range all {
		all[i].later = max(0, all[i].later)
	}
	return all
}

func anyBucket(t *rapid.T) Bucket {
	b := Bucket{Budget: limit.Budget{
		Capacity: limit.Tokens(rapid.Int64Range(1, 6).Draw(t, "capacity")),
		Rate:     limit.Rate(rapid.SampledFrom([]int64{1, 3, 99_999, 1_000_000, 1_666_666, 7_000_000}).Draw(t, "rate")),
	}}
	if rapid.Bool().Draw(t, "leaky") {
		b.MaxDelay = rapid.SampledFrom([]limit.Micros{1, second, 10 * second, 3*minute + 1}).Draw(t, "max_delay")
	}
	return b
}

// rounding is what a turn that is rounded up to a microsecond takes off the interval that it begins.
func rounding(b *Bucket) limit.Micro {
	if b.MaxDelay == 0 {
		return 0
	}
	return brings(b.Budget, 1) + 1
}

// TestBucket_KeepsItsPromise: at most C + R·T in any interval, counted when each request had its turn; turns are in order and no
// later than max_delay.
func TestBucket_KeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBucket(t)
		taken := play(t, func() limiter { return &Bucket{Budget: b.Budget, MaxDelay: b.MaxDelay} }, onward(anyAsked(t)))
		if over := Excess(taken, b.Budget); over > rounding(&b) {
			t.Fatalf("%+v exceed %s by %d micro-tokens", taken, b.Budget, over)
		}
		if !slices.IsSortedFunc(taken, func(x, y Taken) int { return int(x.At - y.At) }) {
			t.Fatalf("turns are not in order: %+v", taken)
		}
	})
}

// TestBucket_APlaceGivenBackBreaksNoPromise: those behind keep their turns, and whoever comes instead exceeds nothing.
func TestBucket_APlaceGivenBackBreaksNoPromise(t *testing.T) {
	credited := false
	rapid.Check(t, func(t *rapid.T) {
		b := anyBucket(t)
		now := began
		var taken []Taken
		for _, q := range onward(anyAsked(t)) {
			now += q.later
			a := b.Take(now, q.cost)
			if a.Delay > b.MaxDelay {
				t.Fatalf("a delay of %d µs", a.Delay)
			}
			if a.Admitted && q.cost > 0 {
				taken = append(taken, Taken{now + a.Delay, q.cost})
			}
			if len(taken) > 0 && rapid.Bool().Draw(t, "leaves") {
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "who")
				if waiting := taken[i].At > now; waiting {
					credited = b.GiveBack(now, i) > 0 || credited
					taken[i].Cost = 0 // whoever left was not forwarded
				}
			}
		}
		if over := Excess(taken, b.Budget); over > rounding(&b) {
			t.Fatalf("%+v exceed %s by %d micro-tokens", taken, b.Budget, over)
		}
	})
	if !credited {
		t.Error("no place was ever credited: the test shows nothing")
	}
}

// TestBucket_WhoLeavesFreesItsPlace where the bucket can hold it, and the last in the queue always.
func TestBucket_WhoLeavesFreesItsPlace(t *testing.T) {
	for what, row := range map[string]struct {
		capacity limit.Tokens
		who      int
		want     limit.Micros
	}{
		"an even flow, the last leaves":    {1, 2, 2 * second},
		"an even flow, the first leaves":   {1, 1, 3 * second},
		"room for two, the first leaves":   {2, 2, 2 * second},
		"room for two, nobody has to wait": {2, 3, 2 * second},
	} {
		b := &Bucket{Budget: limit.Budget{Capacity: row.capacity, Rate: limit.MicroPerToken}, MaxDelay: minute}
		for range row.capacity + 2 {
			b.Take(0, 1)
		}
		b.GiveBack(0, row.who)
		if a := b.Take(0, 1); a.Delay != row.want {
			t.Errorf("%s: the next waits %d µs, want %d", what, a.Delay, row.want)
		}
	}
}

func TestSlots(t *testing.T) {
	s := &Slots{N: 2, Lapse: 10 * second}
	if s.Take(0, "a", "1").Admitted {
		t.Error("a gateway that nobody heard holds a slot")
	}
	s.Renew(0, "a")
	s.Renew(0, "b")
	for _, step := range []struct {
		what     string
		admitted bool
		take     Answer
	}{
		{"the first", true, s.Take(0, "a", "1")},
		{"two at once where one is left", false, s.Take(0, "a", "2", "3")},
		{"the last", true, s.Take(0, "b", "4")},
		{"one too many", false, s.Take(0, "b", "5")},
		{"what never fits", false, s.Take(0, "b", "5", "6", "7")},
	} {
		if step.take.Admitted != step.admitted {
			t.Errorf("%s: %+v, want admitted %t", step.what, step.take, step.admitted)
		}
	}
	if !s.Release(second, "4") || s.Release(second, "4") || s.Release(second, "5") {
		t.Error("a slot is not released exactly once")
	}
	s.Renew(9*second, "b")
	if held := s.Held(10*second - 1); held != 1 {
		t.Errorf("%d slots are held just before a is given up, want 1", held)
	}
	if held := s.Held(10 * second); held != 0 {
		t.Errorf("%d slots are held when a was not heard for 10 s, want 0", held)
	}
	if s.Renew(11*second, "a"); s.Held(11*second) != 0 || s.Release(11*second, "1") {
		t.Error("a gateway that comes back has its lapsed slot again")
	}
}

// TestGiveBack_OnlyInItsOwnWindow (PROTOCOL.md E5).
func TestGiveBack_OnlyInItsOwnWindow(t *testing.T) {
	f, c, l := &FixedWindow{N: 5, Window: minutes(t)}, &Counter{N: 5, Length: minute}, &Log{N: 5, Length: minute}
	for _, each := range []limiter{f, c, l} {
		bunch(each, 10*minute, 5)
	}
	then, counted := f.ID(), c.ID()
	if a, b, d := f.GiveBack(then, 2), c.GiveBack(counted, 2), l.GiveBack(0, 9); a != 2 || b != 2 || d != 1 {
		t.Errorf("credited are %d, %d and %d, want 2, 2 and no more than 1 was taken", a, b, d)
	}
	if a, b, d := bunch(f, 10*minute, 9), bunch(c, 10*minute, 9), bunch(l, 10*minute, 9); a != 2 || b != 2 || d != 1 {
		t.Errorf("%d, %d and %d more pass, want 2, 2, 1", a, b, d)
	}
	for _, each := range []limiter{f, c, l} {
		bunch(each, 12*minute, 1)
	}
	if a, b, d := f.GiveBack(then, 1), c.GiveBack(counted, 1), l.GiveBack(1, 1); a+b+d != 0 {
		t.Errorf("credited are %d, %d and %d of a window that is over, want none", a, b, d)
	}
}
