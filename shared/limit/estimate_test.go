package limit

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestEstimate_TheDesignsGoldenCase: previous 80, current 20, 15 s into a minute is an estimate of 80; one more fits only if the
// limit is 81 or more.
func TestEstimate_TheDesignsGoldenCase(t *testing.T) {
	const minute = 60 * second
	if got := Estimate(80, 20, 15*second, minute); got != 80 {
		t.Errorf("Estimate(80, 20, 15 s of 60 s) = %d, want 80", got)
	}
	if got := EstimateFits(80, 20, 15*second, minute, 81-1); got != 0 {
		t.Errorf("one more fits a limit of 81 in %d µs, want at once", got)
	}
	if got := EstimateFits(80, 20, 15*second, minute, 80-1); got != 750_000 { // 80 · 0.75 s of 60 s is 1
		t.Errorf("one more fits a limit of 80 in %d µs, want in 0.75 s", got)
	}
}

func TestEstimate(t *testing.T) {
	const minute = 60 * second
	for what, row := range map[string]struct {
		previous, current Tokens
		into, length      Micros
		want              Tokens
	}{
		"the window's first instant counts all before": {100, 0, 0, minute, 100},
		"its last one rounds up":                       {100, 0, minute - 1, minute, 1},
		"its end counts nothing before":                {100, 7, minute, minute, 7},
		"a third is rounded up":                        {1, 0, 40 * second, minute, 1},
		"nothing before":                               {0, 9, 5, minute, 9},
		"the largest numbers":                          {MaxWindowTokens, MaxWindowTokens, 1, Micros(MaxWindow.Microseconds()), 2 * MaxWindowTokens},
	} {
		if got := Estimate(row.previous, row.current, row.into, row.length); got != row.want {
			t.Errorf("%s: Estimate(%d, %d, %d, %d) = %d, want %d", what, row.previous, row.current, row.into, row.length, got, row.want)
		}
	}
}

type counted struct {
	previous, current Tokens
	into, length      Micros
}

func anyCounted(t *rapid.T) counted {
	tokens := rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, int64(MaxWindowTokens)))
	length := rapid.OneOf(rapid.Int64Range(MinWindow.Microseconds(), 10*MinWindow.Microseconds()), rapid.Int64Range(MinWindow.Microseconds(), MaxWindow.Microseconds())).Draw(t, "length")
	return counted{
		Tokens(tokens.Draw(t, "previous")), Tokens(tokens.Draw(t, "current")),
		Micros(rapid.Int64Range(0, length).Draw(t, "into")), Micros(length),
	}
}

// TestEstimate_IsTheDumbTwin compares with unbounded integers.
func TestEstimate_IsTheDumbTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCounted(t)
		part := new(big.Int).Mul(big.NewInt(int64(c.previous)), big.NewInt(int64(c.length-c.into)))
		part.Add(part, big.NewInt(int64(c.length)-1)).Div(part, big.NewInt(int64(c.length)))
		want := int64(c.current) + part.Int64()
		if got := Estimate(c.previous, c.current, c.into, c.length); int64(got) != want {
			t.Fatalf("Estimate(%+v) = %d, want %d", c, got, want)
		}
	})
}

// TestEstimateFits_NotAMicrosecondSooner: when it says so the estimate is at most room, a microsecond before it was not.
func TestEstimateFits_NotAMicrosecondSooner(t *testing.T) {
	later := func(c counted, in Micros) Tokens {
		switch into := c.into + in; {
		case into < c.length:
			return Estimate(c.previous, c.current, into, c.length)
		case into < 2*c.length:
			return Estimate(c.current, 0, into-c.length, c.length)
		default:
			return 0
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		c := anyCounted(t)
		c.into = min(c.into, c.length-1)
		room := Tokens(rapid.Int64Range(-1, 2*int64(c.previous+c.current)+1).Draw(t, "room"))
		in := EstimateFits(c.previous, c.current, c.into, c.length, room)
		if room < 0 {
			if in != Never {
				t.Fatalf("nothing fits in %d µs, want never", in)
			}
			return
		}
		if in < 0 || in > 2*c.length {
			t.Fatalf("EstimateFits(%+v, %d) = %d", c, room, in)
		}
		if got := later(c, in); got > room {
			t.Fatalf("EstimateFits(%+v, %d) = %d, when the estimate is %d", c, room, in, got)
		}
		if in > 0 && later(c, in-1) <= room {
			t.Fatalf("EstimateFits(%+v, %d) = %d, but it fits a microsecond sooner", c, room, in)
		}
	})
}

func TestAlgorithmsHaveTheNamesOfTheDocument(t *testing.T) {
	for _, a := range Algorithms() {
		if back, ok := ParseAlgorithm(a.String()); !ok || back != a {
			t.Errorf("ParseAlgorithm(%q) = %s, %t", a, back, ok)
		}
		if a.MaxN() < 10_000 || a.MaxN().Micro() < 0 {
			t.Errorf("%s: N up to %d", a, a.MaxN())
		}
	}
	if a, ok := ParseAlgorithm("gcra"); ok {
		t.Errorf("gcra is %s", a)
	}
	if a := Algorithm(99); a.String() != "unknown algorithm" || a.Windowed() {
		t.Errorf("algorithm 99 is %s, windowed: %t", a, a.Windowed())
	}
}
