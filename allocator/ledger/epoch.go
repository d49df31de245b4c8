package ledger

import (
	"slices"

	"github.com/annona-gateway/annona/shared/limit"
)

// region is what the shard knows of one region's store: its epoch, and those that came before.
type region struct {
	epoch    string
	heardAt  limit.Micros
	replaced []replaced // oldest first
}

// replaced is an epoch that is over.
type replaced struct {
	epoch string
	at    limit.Micros
}

// refuses reports whether epoch is one that was replaced: a late item of it, or a demoted store that does not know yet. Which of
// two epochs is the younger their names do not say, so after the loss of a journal it may be the wrong one that was taken for
// new. Therefore a replaced epoch that asks is taken back when the one in its place has been silent for long: refusing it for
// ever would leave its region without a lease for ever.
func (r *region) refuses(at limit.Micros, epoch string) bool {
	i := slices.IndexFunc(r.replaced, func(old replaced) bool { return old.epoch == epoch })
	return i >= 0 && (at-r.replaced[i].at < RefusedFor || at-r.heardAt < RefusedFor)
}

// mayBegin reports whether one more epoch can be replaced at an instant without forgetting one too early.
func (r *region) mayBegin(at limit.Micros) bool {
	return len(r.replaced) < MaxReplaced || at-r.replaced[0].at >= RefusedFor
}

// begin makes epoch the region's.
func (r *region) begin(at limit.Micros, epoch string) {
	r.replaced = slices.DeleteFunc(r.replaced, func(old replaced) bool { return old.epoch == epoch })
	if r.epoch != "" {
		r.replaced = append(r.replaced, replaced{epoch: r.epoch, at: at})
		r.replaced = slices.Delete(r.replaced, 0, max(0, len(r.replaced)-MaxReplaced))
	}
	r.epoch = epoch
}
