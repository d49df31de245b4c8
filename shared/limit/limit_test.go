package limit

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

const (
	second = Micros(MicrosPerSecond)
	token  = Micro(MicroPerToken)
)

// anyBudget draws any legal budget, the extremes often.
func anyBudget(t *rapid.T) Budget {
	return Budget{
		Capacity: Tokens(rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, int64(MaxTokens))).Draw(t, "capacity")),
		Rate:     Rate(rapid.OneOf(rapid.Int64Range(0, 10), rapid.Int64Range(0, 100*MicroPerToken), rapid.Int64Range(0, int64(MaxRate))).Draw(t, "rate")),
	}
}

func anyElapsed() *rapid.Generator[Micros] {
	return rapid.Map(rapid.OneOf(rapid.Int64Range(-5, 5), rapid.Int64Range(0, 100*MicrosPerSecond), rapid.Int64Range(0, int64(Never))), func(n int64) Micros { return Micros(n) })
}

// TestRefill_TheDesignsGoldenCase: capacity 20 and 5/s: 20 at once, 5 after 1 s, 20 after an idle hour.
func TestRefill_TheDesignsGoldenCase(t *testing.T) {
	b := Budget{Capacity: 20, Rate: 5 * MicroPerToken}
	for _, step := range []struct {
		elapsed, took Micros
		level, want   Micro
	}{
		{elapsed: second, level: 0, want: 5 * token, took: second},
		{elapsed: 3600 * second, level: 0, want: 20 * token, took: 3600 * second},
		{elapsed: second, level: 20 * token, want: 20 * token, took: second},
	} {
		if level, took := b.Refill(step.level, step.elapsed); level != step.want || took != step.took {
			t.Errorf("Refill(%d, %d) = %d, %d, want %d, %d", step.level, step.elapsed, level, took, step.want, step.took)
		}
	}
}

func TestRefill(t *testing.T) {
	b := Budget{Capacity: 10, Rate: 3}
	for what, row := range map[string]struct {
		b             Budget
		level, want   Micro
		elapsed, took Micros
	}{
		"a clock that runs back changes nothing":        {b: b, level: 5, elapsed: -second, want: 5, took: 0},
		"no time brings nothing":                        {b: b, level: 5, elapsed: 0, want: 5, took: 0},
		"a remainder is left on the mark":               {b: b, level: 0, elapsed: 500_000, want: 1, took: 333_334},
		"a debt refills first":                          {b: b, level: -9, elapsed: second, want: -6, took: second},
		"no rate brings nothing and takes no time":      {b: Budget{Capacity: 10}, level: 4, elapsed: second, want: 4, took: 0},
		"a full bucket gains nothing by waiting":        {b: b, level: 10 * token, elapsed: 7, want: 10 * token, took: 7},
		"above full, after a cut, it keeps what it has": {b: b, level: 11 * token, elapsed: 7, want: 11 * token, took: 7},
		"the largest numbers do not overflow":           {b: Budget{MaxTokens, MaxRate}, level: -MaxTokens.Micro(), elapsed: Never, want: MaxTokens.Micro(), took: Never},
	} {
		if level, took := row.b.Refill(row.level, row.elapsed); level != row.want || took != row.took {
			t.Errorf("%s: Refill(%d, %d) = %d, %d, want %d, %d", what, row.level, row.elapsed, level, took, row.want, row.took)
		}
	}
}

// TestRefill_HoweverOftenItIsAsked: refilled in parts, advancing the mark by what each took, a bucket has never more than
// refilled in one go, and at most what a microsecond a part brings less, for what a part took is rounded up. This is what keeps
// R·T exact.
func TestRefill_HoweverOftenItIsAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBudget(t)
		steps := rapid.SliceOfN(rapid.Map(rapid.Int64Range(0, 3*MicrosPerSecond), func(n int64) Micros { return Micros(n) }), 1, 20).Draw(t, "steps")
		var total, now, mark Micros
		level := Micro(0)
		for _, step := range steps {
			now += step
			var took Micros
			level, took = b.Refill(level, now-mark)
			if mark += took; mark > now {
				t.Fatalf("the mark %d is ahead of the time %d", mark, now)
			}
			total += step
		}
		once, _ := b.Refill(0, total)
		if lost := once - level; lost < 0 || brings(b, Micros(len(steps))).Cmp(big.NewInt(int64(lost-1))) < 0 {
			t.Fatalf("in parts %d, in one go %d", level, once)
		}
		if most := brings(b, total); big.NewInt(int64(level)).Cmp(most) > 0 {
			t.Fatalf("%d micro-tokens in %d µs, above %s", level, total, most)
		}
	})
}

// brings returns how many micro-tokens b brings in elapsed, in arithmetic that cannot overflow: the dumb twin.
func brings(b Budget, elapsed Micros) *big.Int {
	product := new(big.Int).Mul(big.NewInt(int64(b.Rate)), big.NewInt(int64(max(0, elapsed))))
	return product.Div(product, big.NewInt(MicrosPerSecond))
}

// TestRefill_IsTheDumbTwin compares with unbounded integers.
func TestRefill_IsTheDumbTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, elapsed := anyBudget(t), anyElapsed().Draw(t, "elapsed")
		full := b.Capacity.Micro()
		level := Micro(rapid.Int64Range(-int64(full), int64(full)).Draw(t, "level"))
		want := new(big.Int).Add(big.NewInt(int64(level)), brings(b, elapsed))
		if limit := big.NewInt(int64(full)); want.Cmp(limit) > 0 {
			want = limit
		}
		got, took := b.Refill(level, elapsed)
		if big.NewInt(int64(got)).Cmp(want) != 0 {
			t.Fatalf("%s: Refill(%d, %d) = %d, want %s", b, level, elapsed, got, want)
		}
		if took < 0 || elapsed >= 0 && took > elapsed {
			t.Fatalf("%s: Refill(%d, %d) took %d", b, level, elapsed, took)
		}
	})
}

// TestAccrued_WholeTokensAndTheirTime: what is credited took its time, one microsecond less would not have brought it, and
// parts add up.
func TestAccrued_WholeTokensAndTheirTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, elapsed := anyBudget(t), anyElapsed().Draw(t, "elapsed")
		whole, took := b.Accrued(elapsed)
		if whole < 0 || took < 0 || took > max(elapsed, 0) {
			t.Fatalf("%s: Accrued(%d) = %d, %d", b, elapsed, whole, took)
		}
		if big.NewInt(int64(whole.Micro())).Cmp(brings(b, took)) > 0 {
			t.Fatalf("%s: %d tokens in %d µs, which bring only %s", b, whole, took, brings(b, took))
		}
		if whole > 0 && big.NewInt(int64(whole.Micro())).Cmp(brings(b, took-1)) <= 0 {
			t.Fatalf("%s: %d tokens took less than %d µs", b, whole, took)
		}
		if next := brings(b, elapsed); whole < b.Capacity && elapsed > 0 && next.Cmp(big.NewInt(int64((whole+1).Micro()))) >= 0 {
			t.Fatalf("%s: only %d tokens in %d µs, which bring %s", b, whole, elapsed, next)
		}
	})
}

func TestTimeTo(t *testing.T) {
	for what, row := range map[string]struct {
		b    Budget
		need Micro
		want Micros
	}{
		"nothing is there already":  {b: Budget{10, 3}, need: 0, want: 0},
		"less than nothing as well": {b: Budget{10, 3}, need: -4, want: 0},
		"rounded up":                {b: Budget{10, 3}, need: 1, want: 333_334},
		"never without a rate":      {b: Budget{10, 0}, need: 1, want: Never},
		"never beyond all time":     {b: Budget{MaxTokens, 1}, need: MaxTokens.Micro(), want: Never},
		"5 tokens at 5/s":           {b: Budget{20, 5 * MicroPerToken}, need: 5 * token, want: second},
	} {
		if got := row.b.TimeTo(row.need); got != row.want {
			t.Errorf("%s: TimeTo(%d) = %d, want %d", what, row.need, got, row.want)
		}
	}
}

// TestTimeTo_IsExact: after that time the refill has brought it, a microsecond earlier it has not.
func TestTimeTo_IsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBudget(t)
		need := Micro(rapid.Int64Range(1, int64(MaxTokens.Micro())).Draw(t, "need"))
		wait := b.TimeTo(need)
		if wait == Never {
			return
		}
		if n := big.NewInt(int64(need)); brings(b, wait).Cmp(n) < 0 || brings(b, wait-1).Cmp(n) >= 0 {
			t.Fatalf("%s: TimeTo(%d) = %d, which brings %s", b, need, wait, brings(b, wait))
		}
	})
}

func TestMicro_Whole(t *testing.T) {
	for m, want := range map[Micro]Tokens{0: 0, 1: 0, 999_999: 0, token: 1, -1: -1, -token: -1, -token - 1: -2, MaxTokens.Micro(): MaxTokens} {
		if got := m.Whole(); got != want {
			t.Errorf("Micro(%d).Whole() = %d, want %d", m, got, want)
		}
		if up := m.Up(); up != want && up != want+1 || up.Micro() < m || (up-1).Micro() >= m {
			t.Errorf("Micro(%d).Up() = %d, want the fewest tokens that hold it", m, up)
		}
	}
}

func TestBudget_Min(t *testing.T) {
	if got, want := (Budget{5, 9}).Min(Budget{7, 3}), (Budget{5, 3}); got != want {
		t.Errorf("Min = %v, want %v", got, want)
	}
}

func TestBudget_String(t *testing.T) {
	if got, want := (Budget{200, 1_666_666}).String(), "200 tokens filling at 1.666666/s"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

// FuzzBudget gives the arithmetic any legal numbers at all: it must not overflow, and never bring more than there is room for.
func FuzzBudget(f *testing.F) {
	f.Add(int64(20), int64(5*MicroPerToken), int64(0), int64(MicrosPerSecond))
	f.Add(int64(MaxTokens), int64(MaxRate), int64(-MaxTokens.Micro()), int64(Never))
	f.Add(int64(1), int64(1), int64(0), int64(Never))
	f.Fuzz(func(t *testing.T, capacity, rate, level, elapsed int64) {
		if capacity < 0 || capacity > int64(MaxTokens) || rate < 0 || rate > int64(MaxRate) || elapsed > int64(Never) {
			return
		}
		b := Budget{Capacity: Tokens(capacity), Rate: Rate(rate)}
		if most := int64(2 * MaxTokens.Micro()); level < -most || level > most {
			return
		}
		after, took := b.Refill(Micro(level), Micros(elapsed))
		if after < Micro(level) || after > max(Micro(level), b.Capacity.Micro()) || took < 0 || took > max(0, Micros(elapsed)) {
			t.Fatalf("%s: Refill(%d, %d) = %d, %d", b, level, elapsed, after, took)
		}
		whole, took := b.Accrued(Micros(elapsed))
		if whole < 0 || took < 0 || took > max(0, Micros(elapsed)) {
			t.Fatalf("%s: Accrued(%d) = %d, %d", b, elapsed, whole, took)
		}
	})
}
