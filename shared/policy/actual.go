package policy

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/annona-gateway/annona/shared/limit"
)

// ActualCost reads what an upstream says that a request did cost: the values of p.Cost.Actual in its header, or in its trailer.
// None is no correction, and neither is what is no cost: the request keeps the one that it was charged, and the error is for the
// log. A cost above any limit of p's algorithm is none that it could count.
func (p *Policy) ActualCost(values []string) (cost limit.Tokens, said bool, err error) {
	switch {
	case len(values) == 0:
		return 0, false, nil
	case len(values) > 1:
		return 0, false, fmt.Errorf("policy %s: the upstream's %s stands %d times; have it say the actual cost once", p.Name, p.Cost.Actual, len(values))
	}
	cost, f := parseAmount(values[0], p.Algorithm.MaxN())
	if f != nil {
		return 0, false, fmt.Errorf("policy %s: the upstream's %s is no cost: %s; %s", p.Name, p.Cost.Actual, f.message, f.remedy)
	}
	return cost, true, nil
}

// Refunds tells whether a request that ended with status costs nothing.
func (c *Cost) Refunds(status int) bool { return slices.Contains(c.Refund, status) }

const refundRemedy = "write the statuses of upstream failures, such as refund: [502, 503, 504]"

// corrected reads what corrects a cost after the answer.
func (r *reader) corrected(p draft, found map[string]*node) {
	actual, refund := found["actual"], found["refund"]
	for _, n := range []*node{actual, refund} {
		if n != nil && p.Algorithm == limit.Concurrency {
			r.refuseName(n, faultf("remove it: a slot is free again when its request has ended", "%s is not for concurrency", n.name))
			return
		}
	}
	if actual != nil {
		p.Cost.Actual = r.headerName(actual, actual.text)
	}
	if refund == nil {
		return
	}
	statuses, _ := r.texts(refund, maxRefunds, refundRemedy)
	for _, n := range statuses {
		if status := valueOf(r, n, n.text, parseRefund); status != 0 {
			p.Cost.Refund = append(p.Cost.Refund, status)
		}
	}
	slices.Sort(p.Cost.Refund)
}

// maxRefunds is how many statuses of failures there are.
const maxRefunds = 100

func parseRefund(text string) (int, *fault) {
	status, err := strconv.Atoi(text)
	switch {
	case err != nil || strconv.Itoa(status) != text || status < 100 || status > 599:
		return 0, faultf(refundRemedy, "%s is no status", shown(text))
	case status < 500:
		return 0, faultf(refundRemedy, "a client can cause %d at will, and would not be limited", status)
	}
	return status, nil
}
