package policy

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/shared/limit"
)

func TestRateInNumbersAndWords(t *testing.T) {
	for text, want := range map[string]struct {
		micro uint64
		words string
	}{
		"1/s":               {1_000_000, "1 per second"},
		"5/s":               {5_000_000, "5 per second"},
		"100/min":           {1_666_666, "100 per minute"},
		"1000/h":            {277_777, "1000 per hour"},
		"10000/day":         {115_740, "10000 per day"},
		"100/90s":           {1_111_111, "100 per 90 seconds"},
		"100/60s":           {1_666_666, "100 per minute"},
		"6/10m":             {10_000, "6 per 10 minutes"},
		"1/48h":             {5, "1 per 2 days"},
		"3/100ms":           {30_000_000, "3 per 100 milliseconds"},
		"1/1.5s":            {666_666, "1 per 1500 milliseconds"},
		"7/1500µs":          {4_666_666_666, "7 per 1.5ms"},
		"0/day":             {0, "0 per day"},
		"1/277h46m40s":      {1, "1 per 1000000 seconds"},
		"1000000000/s":      {uint64(limit.MaxRate), "1000000000 per second"},
		"1000000000/8784h":  {31_623_153, "1000000000 per 366 days"},
		"1000000/1ms":       {uint64(limit.MaxRate), "1000000 per millisecond"},
		"31/8784h":          {0, ""},
		"1000000001/1000ms": {0, ""},
	} {
		r, f := parseRate(text)
		if want.words == "" {
			if f == nil {
				t.Errorf("parseRate(%q) = %v, want a fault", text, r)
			}
			continue
		}
		if f != nil {
			t.Errorf("parseRate(%q): %s", text, f.message)
			continue
		}
		if micro, _ := r.micro(); micro != want.micro || r.words() != want.words {
			t.Errorf("parseRate(%q) = %d, %q, want %d, %q", text, micro, r.words(), want.micro, want.words)
		}
	}
}

// The rate is ⌊N · 10⁶ / seconds⌋ exactly, for every rate that a document can name.
func TestRateIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rate{
			tokens: limit.Tokens(rapid.Int64Range(0, int64(limit.MaxTokens)).Draw(t, "tokens")),
			per:    time.Duration(rapid.Int64Range(int64(minPeriod), int64(maxPeriod)).Draw(t, "per")),
		}
		exact := new(big.Int).Mul(big.NewInt(int64(r.tokens)), big.NewInt(limit.MicroPerToken*int64(time.Second)))
		want, rest := exact.DivMod(exact, big.NewInt(int64(r.per)), new(big.Int))
		floor, left := r.micro()
		if floor != want.Uint64() || left != rest.Uint64() {
			t.Fatalf("%d tokens in %s are %d rest %d, want %s rest %s", r.tokens, r.per, floor, left, want, rest)
		}
	})
}

// Where whole micro-tokens lose more than 1 %, Parse says so, and what it suggests loses nothing.
func TestRateFlooringIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"1/20h":   "13 is 6.4 % less than written",
		"1/48h":   "5 is 13.6 % less than written",
		"100/min": "", "1/h": "", "1/s": "", "0/day": "", "1/200h": "1 is 28.0 % less than written",
	} {
		r, f := parseRate(text)
		if f != nil {
			t.Fatal(f.message)
		}
		warning := r.flooring()
		if want == "" {
			if warning != nil {
				t.Errorf("%s: %s, want nothing", text, warning.message)
			}
			continue
		}
		if warning == nil || !strings.Contains(warning.message, want) {
			t.Errorf("%s: %v, want %q", text, warning, want)
			continue
		}
		_, suggestion, _ := strings.Cut(warning.remedy, "write ")
		floor, _ := r.micro()
		better, f := parseRate(suggestion)
		if micro, _ := better.micro(); f != nil || micro != floor+1 || better.flooring() != nil {
			t.Errorf("%s: the remedy is %q, which is %d micro-tokens a second, want %d", text, warning.remedy, micro, floor+1)
		}
	}
}

func TestParsePercent(t *testing.T) {
	for text, want := range map[string]int64{
		"0%": 0, "10%": 100_000, "2.5%": 25_000, "12.5 %": 125_000, "0.0001%": 1, "100%": limit.Whole, "99.9999%": 999_999, "007%": 70_000,
	} {
		if got, f := parsePercent(text); f != nil || got != want {
			t.Errorf("parsePercent(%q) = %d, %v, want %d", text, got, f, want)
		}
	}
}
