package limit

import "math/bits"

// Split says how a global budget is divided: each region in contact keeps AllotmentPPM millionths of its share by weight as
// its allotment, the pool holds the rest (PROTOCOL.md A1).
type Split struct {
	// AllotmentPPM is the allotment fraction k in parts per million.
	AllotmentPPM int64
	// Weights are the regions' weights; share w_r is a weight over their sum.
	Weights map[string]uint64
	// Cost is the policy's largest cost: an allotment below it could never admit one, so it is 0.
	Cost Tokens
}

// Allotment returns the part of b that region keeps: ⌊k·w·C⌋ tokens, 0 if that is below the largest cost, and its rate
// likewise. An allotment of 0 has no rate. A region without weight has no part.
func (s Split) Allotment(b Budget, region string) Budget {
	total := s.total()
	weight := s.Weights[region]
	if total == 0 || weight == 0 {
		return Budget{}
	}
	part := Budget{
		Capacity: Tokens(portion(uint64(b.Capacity), uint64(s.AllotmentPPM), weight, total)),
		Rate:     Rate(portion(uint64(b.Rate), uint64(s.AllotmentPPM), weight, total)),
	}
	if part.Capacity == 0 || part.Capacity < s.Cost {
		return Budget{}
	}
	return part
}

// Pool returns what is left of b for the pool, so that parts add up to the whole. A pool of 0 has no rate either.
func (s Split) Pool(b Budget) Budget {
	pool := b
	for region := range s.Weights {
		part := s.Allotment(b, region)
		pool.Capacity -= part.Capacity
		pool.Rate -= part.Rate
	}
	if pool.Capacity == 0 {
		return Budget{}
	}
	return pool
}

func (s Split) total() uint64 {
	var sum uint64
	for _, weight := range s.Weights {
		sum += weight
	}
	return sum
}

// portion returns ⌊amount · ppm · weight / (10⁶ · total)⌋ with a 128-bit product. ppm ≤ 10⁶ and weight ≤ total ≤ 10⁹, so the
// product of the two fits 64 bits and the quotient is at most amount.
func portion(amount, ppm, weight, total uint64) uint64 {
	hi, lo := bits.Mul64(amount, ppm*weight)
	quotient, _ := bits.Div64(hi, lo, Whole*total)
	return quotient
}
