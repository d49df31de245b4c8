package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// Override replaces a policy's numbers for some of its clients, for some time.
type Override struct {
	// Key says for whom; the zero value is everyone.
	Key Selector
	// From and Until bound when, Until excluded; zero: no bound.
	From, Until time.Time
	Budget      limit.Budget
	// RateText is the rate in words.
	RateText string

	name string // that Name computed, where Parse made it
}

// What the names of variants begin with. The policy's own numbers have the name "".
const (
	tierVariant     = "tier:"
	overrideVariant = "override:"
)

// Name is o's variant. It is made of whom and when, not of the numbers: while a new revision spreads, one and the same override
// with other numbers has one name everywhere, wherever it stands in the list.
func (o *Override) Name() string {
	if o.name != "" {
		return o.name
	}
	sum := sha256.Sum256([]byte(o.Key.canonical() + o.From.UTC().Format(time.RFC3339Nano) + "/" + o.Until.UTC().Format(time.RFC3339Nano)))
	return overrideVariant + hex.EncodeToString(sum[:8])
}

// active tells whether o applies at an instant.
func (o *Override) active(at time.Time) bool {
	return !at.Before(o.From) && (o.Until.IsZero() || at.Before(o.Until))
}

// covers tells whether o applies whenever other does, to everyone to whom other does.
func (o *Override) covers(other *Override) bool {
	ends := o.Until.IsZero() || (!other.Until.IsZero() && !other.Until.After(o.Until))
	return ends && !other.From.Before(o.From) && o.Key.covers(&other.Key)
}

// Variant names which of p's numbers apply to a client at an instant, and returns them: those of the first override that
// applies, else its tier's, else p's own.
func (p *Policy) Variant(id *Identity, at time.Time) (string, limit.Budget) {
	for i := range p.Overrides {
		if o := &p.Overrides[i]; o.active(at) && o.Key.Selects(id) {
			return o.Name(), o.Budget
		}
	}
	if b, ok := p.Tiers[id.Tier]; ok {
		return tierVariant + id.Tier, b
	}
	return "", p.Budget
}

// BudgetOf returns the numbers of a variant that Variant named; ok is false where p has no such variant.
func (p *Policy) BudgetOf(variant string) (b limit.Budget, ok bool) {
	if variant == "" {
		return p.Budget, true
	}
	if tier, ok := strings.CutPrefix(variant, tierVariant); ok {
		b, ok = p.Tiers[tier]
		return b, ok
	}
	if o := p.override(variant); o != nil {
		return o.Budget, true
	}
	return b, false
}

// RateOf returns a variant's rate in words, p's own where there is no such variant.
func (p *Policy) RateOf(variant string) string {
	if tier, ok := strings.CutPrefix(variant, tierVariant); ok {
		if text, ok := p.TierText[tier]; ok {
			return text
		}
	}
	if o := p.override(variant); o != nil {
		return o.RateText
	}
	return p.RateText
}

func (p *Policy) override(variant string) *Override {
	if !strings.HasPrefix(variant, overrideVariant) {
		return nil
	}
	for i := range p.Overrides {
		if p.Overrides[i].Name() == variant {
			return &p.Overrides[i]
		}
	}
	return nil
}

// Variants returns the names of all of p's sets of numbers, the plain one first.
func (p *Policy) Variants() []string {
	variants := []string{""}
	for _, tier := range slices.Sorted(maps.Keys(p.Tiers)) {
		variants = append(variants, tierVariant+tier)
	}
	for i := range p.Overrides {
		variants = append(variants, p.Overrides[i].Name())
	}
	return variants
}

// titleOf names a variant in a message about p.
func (p *Policy) titleOf(variant string) string {
	if tier, ok := strings.CutPrefix(variant, tierVariant); ok {
		return "tier " + tier
	}
	if o := p.override(variant); o != nil {
		return "the override of " + o.Key.String()
	}
	return "everyone else"
}
