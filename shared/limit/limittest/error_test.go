package limittest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/shared/limit"
)

// arrivals draws the instants of a day's requests of one client.
type arrivals func(random *rand.Rand) []limit.Micros

const (
	hour    = 60 * minute
	oneDay  = 24 * hour
	perMin  = 100 // the limit
	patient = 3   // how often a pattern is drawn
)

// poisson are requests that know nothing of each other, rate of them a minute, which may change with the time.
func poisson(most float64, rate func(at limit.Micros) float64) arrivals {
	return func(random *rand.Rand) []limit.Micros {
		var all []limit.Micros
		for at := 0.0; at < float64(oneDay); {
			at += random.ExpFloat64() * float64(minute) / most
			if random.Float64() < rate(limit.Micros(at))/most { // thinning (Lewis and Shedler, 1979)
				all = append(all, limit.Micros(at))
			}
		}
		return all
	}
}

func evenly(rate float64) arrivals { return poisson(rate, func(limit.Micros) float64 { return rate }) }

// bursts are so many requests in two seconds, every now and then.
func bursts(size int, every float64) arrivals {
	return func(random *rand.Rand) []limit.Micros {
		var all []limit.Micros
		for at := 0.0; at < float64(oneDay); at += float64(2*second) + random.ExpFloat64()*every {
			for i := range size {
				all = append(all, limit.Micros(at)+limit.Micros(i)*2*second/limit.Micros(size))
			}
		}
		return all
	}
}

// daily goes from a tenth of the limit at night to twice the limit at noon.
func daily() arrivals {
	return poisson(2*perMin, func(at limit.Micros) float64 {
		return perMin * (1.05 - 0.95*math.Cos(2*math.Pi*float64(at)/float64(oneDay)))
	})
}

// cron sends all of the limit at a fixed second of every minute.
func cron(at limit.Micros) arrivals {
	return func(*rand.Rand) []limit.Micros {
		var all []limit.Micros
		for from := at; from < oneDay; from += minute {
			for i := range limit.Micros(perMin) {
				all = append(all, from+i*1000)
			}
		}
		return all
	}
}

// edges sends all of the limit in the last second of every other window and in the first of the next.
func edges() arrivals {
	return func(*rand.Rand) []limit.Micros {
		var all []limit.Micros
		for at := 2*minute - second; at < oneDay; at += 2 * minute {
			for i := range limit.Micros(2 * perMin) {
				all = append(all, at+i*10_000)
			}
		}
		return all
	}
}

// patterns are the arrivals in the order in which ALGORITHMS.md shows them.
var patterns = []struct {
	name string
	of   arrivals
}{
	{"Poisson, half the limit", evenly(perMin / 2)},
	{"Poisson, 90 % of it", evenly(0.9 * perMin)},
	{"Poisson, all of it", evenly(perMin)},
	{"Poisson, three times", evenly(3 * perMin)},
	{"a day's curve, 10 % to 200 %", daily()},
	{"bursts of 50 in 2 s", bursts(50, float64(minute))},
	{"bursts of 300 in 2 s", bursts(300, float64(2*minute))},
	{"all of it at :00 of each minute", cron(0)},
	{"all of it at :30", cron(30 * second)},
	{"an attack at the edges", edges()},
}

// mistakes are what the counter does otherwise than an exact log of its own admissions would.
type mistakes struct {
	over      float64 // the most admitted in any window beyond the limit, as a part of it
	under     float64 // the most that was still free in the last window when a request was denied, as a part of the limit
	denied    float64 // requests denied that had room, as a part of all
	admission float64 // what it admitted, as a part of what an exact log would have
}

// measure plays arrivals to a counter and, beside it, to a log.
func measure(all []limit.Micros) mistakes {
	var m mistakes
	var start limit.Micros
	var previous, current limit.Tokens // a Counter, but fast
	var own, exact []limit.Micros      // what was admitted in the last minute: by the counter, and by a log
	admitted, logged := 0, 0
	for _, at := range all {
		for len(own) > 0 && own[0] <= at-minute {
			own = own[1:]
		}
		for len(exact) > 0 && exact[0] <= at-minute {
			exact = exact[1:]
		}
		if len(exact) < perMin {
			exact, logged = append(exact, at), logged+1
		}
		if now := at / minute * minute; now > start {
			if previous = current; now > start+minute {
				previous = 0
			}
			start, current = now, 0
		}
		if limit.Estimate(previous, current, at-start, minute) < perMin {
			current++
			own, admitted = append(own, at), admitted+1
			m.over = max(m.over, float64(len(own)-perMin)/perMin)
			continue
		}
		if free := perMin - len(own); free > 0 {
			m.under, m.denied = max(m.under, float64(free)/perMin), m.denied+1
		}
	}
	m.denied, m.admission = m.denied/float64(len(all)), float64(admitted)/float64(logged)
	return m
}

// worst measures a pattern several times, always with the same seeds.
func worst(of arrivals) mistakes {
	var all mistakes
	all.admission = 1
	for seed := range uint64(patient) {
		m := measure(of(rand.New(rand.NewPCG(seed, 18))))
		all.over, all.under = max(all.over, m.over), max(all.under, m.under)
		all.denied, all.admission = max(all.denied, m.denied), min(all.admission, m.admission)
	}
	return all
}

// row writes a pattern's mistakes as ALGORITHMS.md does.
func row(name string, m mistakes) string {
	return fmt.Sprintf("| %s | %.0f %% | %.0f %% | %.1f %% | %.1f %% |", name, 100*m.over, 100*m.under, 100*m.denied, 100*m.admission)
}

// TestCounterErrorIsAsDocumented measures what a sliding_window_counter admits too much and too little on a day of arrivals, and
// compares with the page that promises it. The numbers are the same on every run.
func TestCounterErrorIsAsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../policy/ALGORITHMS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range patterns {
		m := worst(pattern.of)
		if m.over >= 1 {
			t.Errorf("%s: %.0f %% beyond the limit, want less than 100 %%", pattern.name, 100*m.over)
		}
		if line := row(pattern.name, m); !strings.Contains(string(page), line+"\n") {
			t.Errorf("ALGORITHMS.md lacks the line\n%s", line)
		}
	}
}
