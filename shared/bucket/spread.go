package bucket

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/annona-gateway/annona/shared/limit"
)

// A take whose buckets lie in several slots of a cluster is one call a shard, sent at once, all or nothing over all of them: where
// one lacks tokens, what the others took is given back before the answer (PROTOCOL.md E5). Nobody can decide for all shards in
// one step, so three things differ from a take in one call, none of them the bound:
//
//   - Between its charge and its give-back a take holds tokens that another may be denied for.
//   - What comes back is what surely fits (GiveBack): of a bucket that is all but full, and taken from by many at once, some
//     tokens may be lost.
//   - Each shard registers the unmet cost of its own buckets: as waiting, if none of them is hopeless or known dry, else as
//     denied. So a request that is denied at one shard may leave a wait at another, which ends by itself with Request.WaitFor.
//     Where all wait, the wait counts once a bucket, round after round, as everywhere (Charge.Waits).

const (
	// claimTimes is for how many timeouts a shard's part may be given back: one until the take is answered, one for clocks that
	// differ and a server that was slow to begin.
	claimTimes = 2
	// maxBacks is how many takes' ends may wait for their give-back; those beyond run out by themselves.
	maxBacks = 1024
	// backsAtOnce is how many of them are sent together.
	backsAtOnce = 64
)

// portion is one shard's part of a take.
type portion struct {
	charges []int // positions in the request
	request Request
	call    *call
	verdict Verdict
	err     error
}

// portions parts r by shard, each with the time to be given back; nil where one call can take all.
func (s *Store) portions(r Request) []*portion {
	first := r.Charges[0].Shard
	var all []*portion
	byShard := map[int]*portion{}
	for i, c := range r.Charges {
		if all == nil && c.Shard == first {
			continue
		}
		if all == nil { // the first that lies elsewhere
			r.GiveBackFor = max(r.GiveBackFor, claimTimes*s.timeout)
			all = []*portion{{request: r}}
			byShard[first] = all[0]
			all[0].request.Charges = append([]Charge(nil), r.Charges[:i]...)
			for j := range i {
				all[0].charges = append(all[0].charges, j)
			}
		}
		p := byShard[c.Shard]
		if p == nil {
			p = &portion{request: r}
			p.request.Charges = nil
			byShard[c.Shard], all = p, append(all, p)
		}
		p.charges, p.request.Charges = append(p.charges, i), append(p.request.Charges, c)
	}
	return all
}

// takeSpread takes all portions of r or none.
func (s *Store) takeSpread(ctx context.Context, r Request, portions []*portion) (Verdict, error) {
	s.takePortions(ctx, r.script(), portions)
	v, charged, err := gather(r, portions)
	switch {
	case err != nil && !errors.Is(err, ErrOlderRevision):
		s.giveBackLater(charged, true)
		if len(charged) > 0 || failures(portions) > 1 {
			err = fmt.Errorf("%w: %w", ErrPartly, err)
		}
		return Verdict{}, couldNotAsk("take", err)
	case err == nil && v.Outcome == Admitted:
		if r.GiveBackFor == 0 {
			s.giveBackLater(charged, false)
		}
		if !r.wantsReceipts() {
			v.Receipts = nil
		}
		return v, nil
	}
	credited, problem := s.GiveBack(ctx, backs(charged, true))
	if problem != nil {
		return Verdict{}, fmt.Errorf("%w: %w", ErrPartly, problem)
	}
	if err != nil {
		return Verdict{}, couldNotAsk("take", err)
	}
	for i, c := range charged {
		v.States[c.position].credit(r.Charges[c.position], credited[i])
	}
	v.Receipts, v.Delay = nil, 0
	return v, nil
}

// takePortions sends the portions at once. Those whose windows were not those of their node's clock, by which nothing was charged,
// are sent again with what that clock says.
func (s *Store) takePortions(ctx context.Context, sc *script, portions []*portion) {
	asking := portions
	for attempt := 1; len(asking) > 0; attempt++ {
		calls := make([]*call, len(asking))
		for i, p := range asking {
			p.call = takeCall(p.request, s.now())
			calls[i] = p.call
		}
		s.runAll(ctx, sc, calls)
		var again []*portion
		for _, p := range asking {
			switch p.err = p.call.err; {
			case p.err != nil:
			case s.outside(p.call.reply) && attempt < attempts:
				again = append(again, p)
			default:
				p.verdict, p.err = parseVerdict(p.call.reply, p.request)
			}
		}
		asking = again
	}
}

// credit is the state after a give-back.
func (s *State) credit(c Charge, back Credited) {
	s.Left += back.Lease
	s.Remaining += back.Count
	if c.Algorithm == limit.TokenBucket {
		s.Level += back.Part
		s.measure(c)
	}
}

// charged is one receipt of a take and its charge's position.
type charged struct {
	Receipt

	position int
}

// gather puts the portions' verdicts together. The error is that of a portion that failed, one of an older revision only where
// no other failed. What was charged is told in any case.
func gather(r Request, portions []*portion) (Verdict, []charged, error) {
	v := Verdict{Outcome: Admitted, States: make([]State, len(r.Charges)), Receipts: make([]Receipt, len(r.Charges))}
	var paid []charged
	var failed error
	for _, p := range portions {
		if p.err != nil {
			if failed == nil || errors.Is(failed, ErrOlderRevision) {
				failed = p.err
			}
			continue
		}
		for i, position := range p.charges {
			v.States[position] = p.verdict.States[i]
			v.Delay = max(v.Delay, p.verdict.States[i].Delay)
			if p.verdict.Outcome != Admitted {
				continue
			}
			v.Receipts[position] = p.verdict.Receipts[i]
			if p.request.Charges[i].Cost > 0 { // a look has claimed nothing
				paid = append(paid, charged{p.verdict.Receipts[i], position})
			}
		}
		if rank(p.verdict.Outcome) > rank(v.Outcome) {
			v.Outcome = p.verdict.Outcome
		}
	}
	return v, paid, failed
}

// rank orders outcomes: that of a take is the highest of its portions'.
func rank(o Outcome) int {
	switch o {
	case Banned:
		return 3
	case Denied:
		return 2
	case Wait:
		return 1
	default:
		return 0
	}
}

func failures(portions []*portion) (n int) {
	for _, p := range portions {
		if p.err != nil {
			n++
		}
	}
	return n
}

// backs gives all of it back, or nothing, which only ends the claim.
func backs(list []charged, all bool) []Back {
	out := make([]Back, len(list))
	for i, c := range list {
		out[i].Receipt = c.Receipt
		if all {
			out[i].Tokens = c.FromLease + c.FromPart
		}
	}
	return out
}

// giveBackLater gives back, or ends the claims of, what a take charged whose answer does not depend on it. Slots are held until they
// are given back whole.
func (s *Store) giveBackLater(list []charged, all bool) {
	if !all {
		list = slices.DeleteFunc(list, func(c charged) bool { return c.Algorithm == limit.Concurrency })
	}
	if len(list) == 0 {
		return
	}
	select {
	case s.backs <- backs(list, all):
	default: // too many: the claims run out, and what was charged stays charged
	}
}

// settleBacks sends what giveBackLater was given until the store is closed.
func (s *Store) settleBacks() {
	for {
		var list []Back
		select {
		case <-s.nodes.live.Done():
			return
		case list = <-s.backs:
		}
		for len(list) < backsAtOnce && len(s.backs) > 0 {
			list = append(list, <-s.backs...)
		}
		// Nobody knows what was credited after an error, and nobody asks.
		_, _ = s.GiveBack(s.nodes.live, list)
	}
}
