package limit

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSplit(t *testing.T) {
	even := map[string]uint64{"ap": 1, "eu": 1, "us": 1}
	for what, row := range map[string]struct {
		split           Split
		b               Budget
		allotment, pool Budget
	}{
		"10 % of a third each, the rest is the pool's": {
			Split{AllotmentPPM: 100_000, Weights: even, Cost: 1}, Budget{100, 50 * MicroPerToken},
			Budget{3, 1_666_666}, Budget{91, 45_000_002},
		},
		"an allotment below one cost is none: all is the pool's": {
			Split{AllotmentPPM: 100_000, Weights: even, Cost: 4}, Budget{100, 50 * MicroPerToken}, Budget{}, Budget{100, 50 * MicroPerToken},
		},
		"case 14: tiny limits have no allotment": {
			Split{AllotmentPPM: 100_000, Weights: even, Cost: 1}, Budget{4, 66_666}, Budget{}, Budget{4, 66_666},
		},
		"no allotment at all": {
			Split{Weights: even, Cost: 1}, Budget{100, 1000}, Budget{}, Budget{100, 1000},
		},
		"all of it, and a pool of 0 has no rate": {
			Split{AllotmentPPM: Whole, Weights: even, Cost: 1}, Budget{99, 1000}, Budget{33, 333}, Budget{},
		},
		"deny all": {
			Split{AllotmentPPM: 100_000, Weights: even, Cost: 1}, Budget{}, Budget{}, Budget{},
		},
		"no regions": {
			Split{AllotmentPPM: 100_000, Cost: 1}, Budget{100, 1000}, Budget{}, Budget{100, 1000},
		},
	} {
		if got := row.split.Allotment(row.b, "eu"); got != row.allotment {
			t.Errorf("%s: Allotment = %v, want %v", what, got, row.allotment)
		}
		if got := row.split.Pool(row.b); got != row.pool {
			t.Errorf("%s: Pool = %v, want %v", what, got, row.pool)
		}
		if got := row.split.Allotment(row.b, "nowhere"); got != (Budget{}) {
			t.Errorf("%s: a region without weight has %v", what, got)
		}
	}
}

// TestA1_PartsAddUpToTheWhole: whatever the weights and the fraction, no token and no rate is in two parts, and none is in none
// (but for the rate of a pool of 0).
func TestA1_PartsAddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBudget(t)
		s := Split{
			AllotmentPPM: rapid.Int64Range(0, Whole).Draw(t, "allotment"),
			Weights:      map[string]uint64{},
			Cost:         Tokens(rapid.Int64Range(1, 5).Draw(t, "cost")),
		}
		for i, weight := range rapid.SliceOfN(rapid.Uint64Range(1, 10_000_000), 1, 64).Draw(t, "weights") {
			s.Weights[fmt.Sprint("r", i)] = weight
		}
		sum := s.Pool(b)
		if sum.Capacity < 0 || sum.Rate < 0 {
			t.Fatalf("the pool has %v", sum)
		}
		empty := sum.Capacity == 0
		for region := range s.Weights {
			part := s.Allotment(b, region)
			if part.Capacity < 0 || part.Rate < 0 || part.Capacity == 0 && part.Rate > 0 || part.Capacity > 0 && part.Capacity < s.Cost {
				t.Fatalf("%s has %v", region, part)
			}
			sum.Capacity += part.Capacity
			sum.Rate += part.Rate
		}
		if sum.Capacity != b.Capacity || sum.Rate > b.Rate || !empty && sum.Rate != b.Rate {
			t.Fatalf("parts add up to %v, the whole is %v", sum, b)
		}
	})
}

func TestMaxMin(t *testing.T) {
	for what, row := range map[string]struct {
		total   Tokens
		demands []Demand
		want    []Tokens
	}{
		"nobody":                                    {10, nil, []Tokens{}},
		"nothing":                                   {0, []Demand{{1, 5}}, []Tokens{0}},
		"everybody gets what it wants":              {10, []Demand{{1, 5}, {1, 5}}, []Tokens{5, 5}},
		"nobody gets more than it wants":            {100, []Demand{{1, 5}, {1, 7}}, []Tokens{5, 7}},
		"an equal division":                         {9, []Demand{{1, 9}, {1, 9}, {1, 9}}, []Tokens{3, 3, 3}},
		"the remainder goes to the earliest":        {11, []Demand{{1, 9}, {1, 9}, {1, 9}}, []Tokens{4, 4, 3}},
		"what one leaves is shared by the others":   {12, []Demand{{1, 2}, {1, 9}, {1, 9}}, []Tokens{2, 5, 5}},
		"by weight":                                 {12, []Demand{{1, 99}, {2, 99}}, []Tokens{4, 8}},
		"what one leaves, by weight":                {16, []Demand{{1, 1}, {1, 99}, {2, 99}}, []Tokens{1, 5, 10}},
		"without weight, or wanting nothing":        {10, []Demand{{0, 9}, {1, 0}, {1, 9}}, []Tokens{0, 0, 9}},
		"fewer tokens than claimants":               {2, []Demand{{1, 9}, {1, 9}, {1, 9}}, []Tokens{1, 1, 0}},
		"the textbook's: 10 over 2, 2.6→3, 4 and 5": {10, []Demand{{1, 2}, {1, 3}, {1, 4}, {1, 5}}, []Tokens{2, 3, 3, 2}},
	} {
		if got := MaxMin(row.total, row.demands); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: MaxMin(%d, %v) = %v, want %v", what, row.total, row.demands, got, row.want)
		}
	}
}

// TestMaxMin_IsFair: it gives out all there is or all that is wanted, never more to anybody than it wants, and where somebody
// gets less, nobody has more for its weight, but for a remainder of one token.
func TestMaxMin_IsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := Tokens(rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, int64(MaxTokens))).Draw(t, "total"))
		demands := make([]Demand, rapid.IntRange(0, 8).Draw(t, "claimants"))
		var wanted Tokens
		for i := range demands {
			demands[i] = Demand{
				Weight: rapid.Uint64Range(1, 20).Draw(t, "weight"),
				Want:   Tokens(rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, int64(MaxTokens))).Draw(t, "want")),
			}
			wanted += demands[i].Want
		}
		before := slices.Clone(demands)
		parts := MaxMin(total, demands)
		if !slices.Equal(before, demands) {
			t.Fatal("it changed its input")
		}
		var given Tokens
		for i, part := range parts {
			given += part
			if part < 0 || part > demands[i].Want {
				t.Fatalf("%d of %d wanted", part, demands[i].Want)
			}
		}
		if given != min(total, wanted) {
			t.Fatalf("%d given of %d, wanted %d", given, total, wanted)
		}
		for i, lacking := range demands {
			for j, other := range demands {
				// parts[j] − 1 per weight above parts[i] + 1 per weight would be unfair.
				if parts[i] < lacking.Want && uint64(max(parts[j]-1, 0))*lacking.Weight > uint64(parts[i]+1)*other.Weight {
					t.Fatalf("%v: claimant %d lacks with %d, claimant %d has %d", demands, i, parts[i], j, parts[j])
				}
			}
		}
	})
}
