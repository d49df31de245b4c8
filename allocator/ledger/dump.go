package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// String writes the whole ledger for a person: its clock, regions and pools, sorted.
func (l *Ledger) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "now %s, %d terms", span(l.now), len(l.terms))
	if l.emptied {
		fmt.Fprintf(&b, ", pools empty at %s", span(l.emptyAt))
	}
	b.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(l.regions)) {
		fmt.Fprintf(&b, "region %s epoch %s, %d replaced\n", name, l.regions[name].epoch, len(l.regions[name].replaced))
	}
	for _, id := range slices.SortedFunc(maps.Keys(l.pools), poolID.compare) {
		b.WriteString(l.pools[id].String())
	}
	return b.String()
}

// String writes one pool and who holds what of it.
func (p *pool) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool %s", p.id.policy)
	if p.variant != "" {
		fmt.Fprintf(&b, " (%s)", p.variant)
	}
	fmt.Fprintf(&b, " %.4s: level %d of %s, mark %s\n", p.id.key, p.level, p.budget, span(p.mark))
	for i := range p.holders {
		p.holders[i].describe(&b)
	}
	return b.String()
}

func (h *holder) describe(b *strings.Builder) {
	fmt.Fprintf(b, "  %s %s/%d seq %d: out %d", h.region, h.epoch, h.session, h.seq, h.out)
	if h.out > 0 {
		fmt.Fprintf(b, " until %s", span(h.expiresAt))
	}
	if h.orphaned > 0 {
		fmt.Fprintf(b, ", orphaned %d until %s", h.orphaned, span(h.orphansUntil))
	}
	if h.writtenOff > 0 {
		fmt.Fprintf(b, ", written off %d", h.writtenOff)
	}
	t := h.totals
	fmt.Fprintf(b, "; granted %d = spent %d + returned %d + lapsed %d + voided %d + held %d; denied %d\n",
		t.granted, t.spent, t.returned, t.lapsed, t.voided, h.held(), t.denied)
}

// span writes an instant or a duration as 14.1s.
func span(m limit.Micros) string { return (time.Duration(m) * time.Microsecond).String() }
