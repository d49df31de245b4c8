package ledger

import (
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// envelopeOf wraps r as its agent would.
func envelopeOf(r request) *leasepb.Envelope {
	return &leasepb.Envelope{Proto: lease.Proto, Region: r.region, Epoch: r.epoch, Items: []*leasepb.Item{r.item}}
}

// replyOf wraps a as the writer would.
func replyOf(a *leasepb.Answer) *leasepb.Reply {
	return &leasepb.Reply{Proto: lease.Proto, Term: "t1", Answers: []*leasepb.Answer{a}}
}
