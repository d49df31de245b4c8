package limit

import "slices"

// Demand is what one claimant of a fair division wants, and its weight.
type Demand struct {
	Weight uint64
	Want   Tokens
}

// MaxMin divides total over demands by weighted max-min fairness and returns each one's part, in order: nobody gets more than
// it wants, what one leaves is shared by weight among the others, and parts are whole, the remainder going to the earliest.
// (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2: progressive filling.)
func MaxMin(total Tokens, demands []Demand) []Tokens {
	parts := make([]Tokens, len(demands))
	open := make([]int, 0, len(demands))
	for i, d := range demands {
		if d.Want > 0 && d.Weight > 0 {
			open = append(open, i)
		}
	}
	// Each round satisfies at least one claimant or ends, so there are at most len(demands) rounds.
	for total > 0 && len(open) > 0 {
		var weights uint64
		for _, i := range open {
			weights += demands[i].Weight
		}
		level := total
		satisfied := slices.DeleteFunc(slices.Clone(open), func(i int) bool {
			return Tokens(mulDiv(uint64(level), demands[i].Weight, weights)) < demands[i].Want
		})
		if len(satisfied) == 0 {
			return fill(parts, demands, open, total, weights)
		}
		for _, i := range satisfied {
			parts[i] = demands[i].Want
			total -= demands[i].Want
		}
		open = slices.DeleteFunc(open, func(i int) bool { return parts[i] > 0 })
	}
	return parts
}

// fill gives every open claimant its whole part of total by weight and the remainder, one token each, to the earliest.
func fill(parts []Tokens, demands []Demand, open []int, total Tokens, weights uint64) []Tokens {
	left := total
	for _, i := range open {
		parts[i] = Tokens(mulDiv(uint64(total), demands[i].Weight, weights))
		left -= parts[i]
	}
	for _, i := range open {
		if left == 0 {
			break
		}
		if parts[i] < demands[i].Want {
			parts[i]++
			left--
		}
	}
	return parts
}
