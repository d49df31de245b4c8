package policy

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// candidates refuses candidates that no decision can be compared with, and warns of what a candidate never does.
func (r *reader) candidates(d *Document) {
	for _, p := range r.drafts {
		n := p.found["candidate_of"]
		if n == nil || p.CandidateOf == "" {
			continue
		}
		current := d.Policy(p.CandidateOf)
		switch {
		case p.CandidateOf == p.Name:
			r.refuse(n, faultf("name the policy that it may replace", "the policy %s is a candidate of itself", p.Name))
		case current == nil:
			remedy := "write the name of a policy of this document"
			if near := nearest(p.CandidateOf, d.names()); near != "" {
				remedy = fmt.Sprintf("did you mean %s?", near)
			}
			r.refuse(n, faultf(remedy, "there is no policy %s", p.CandidateOf))
		case current.CandidateOf != "":
			r.refuse(n, faultf("write candidate_of: "+current.CandidateOf, "the policy %s is a candidate itself", current.Name))
		}
		if current != nil && current != p.Policy && current.decidesAs(p.Policy) {
			r.warn(n, faultf("change what the candidate is to try", "the candidate decides as %s does", current.Name))
		}
		if enforce := p.found["enforce"]; enforce != nil && enforce.text != "0%" {
			r.refuse(enforce, faultf("remove it, or candidate_of once the candidate is to deny", "a candidate only reports"))
		}
	}
}

// decidesAs tells whether p and other count the same requests alike, with the same numbers.
func (p *Policy) decidesAs(other *Policy) bool {
	return p.counts() == other.counts() && p.Budget == other.Budget && maps.Equal(p.Tiers, other.Tiers) &&
		slices.EqualFunc(p.Overrides, other.Overrides, func(a, b Override) bool { return a.Name() == b.Name() && a.Budget == b.Budget })
}

func (d *Document) names() []string {
	names := make([]string, 0, len(d.Policies))
	for _, p := range d.Policies {
		names = append(names, p.Name)
	}
	return names
}

var banFields = []string{"denials", "within", "for"}

const (
	banRemedy = "write ban: {denials: 10, within: 1m, for: 10m}"
	// MaxBanDenials bounds how many denials a ban may take.
	MaxBanDenials = 10_000
	// maxBanWithin and MaxBan are the longest time in which denials count and the longest ban.
	maxBanWithin = day
	maxBan       = 366 * day
)

// ban reads `{denials: 10, within: 1m, for: 10m}`.
func (r *reader) ban(p draft, n *node) {
	if !r.is(n, mapping, banRemedy) {
		return
	}
	found := r.fields(n, banFields)
	r.need(n, found, banFields, map[string]string{
		"denials": "write denials: and how many of them ban a client, such as 10",
		"within":  "write within: and the time in which they count, such as 1m",
		"for":     "write for: and how long the ban lasts, such as 10m",
	})
	if denials := found["denials"]; denials != nil {
		if text, ok := r.text(denials, banRemedy); ok {
			count, f := parseAmount(text, MaxBanDenials)
			switch {
			case f != nil:
				r.refuse(denials, faultf(fmt.Sprintf("write a whole number from 1 to %d", MaxBanDenials), "denials: %s", f.message))
			case count == 0:
				r.refuse(denials, faultf("write 1 or more, or remove ban", "a ban after 0 denials is one of everybody"))
			}
			p.Ban.Denials = int(count)
		}
	}
	p.Ban.Within = r.banTime(found["within"], maxBanWithin)
	p.Ban.For = r.banTime(found["for"], maxBan)
}

// banTime reads a duration from 1 s to most.
func (r *reader) banTime(n *node, most time.Duration) time.Duration {
	if n == nil {
		return 0
	}
	text, ok := r.text(n, banRemedy)
	if !ok {
		return 0
	}
	length, err := time.ParseDuration(text)
	if err != nil || length < time.Second || length > most {
		remedy := fmt.Sprintf("write a duration with its unit from 1s to %s, such as 10m", most)
		r.refuse(n, faultf(remedy, "%s: %s is no duration in range", n.name, shown(text)))
		return 0
	}
	return length
}

// idleBan warns of bans that ban nobody, or everybody.
func (r *reader) idleBan(p draft) {
	n := p.found["ban"]
	switch {
	case n == nil || p.Ban.Denials == 0:
	case !p.Enforced:
		r.warn(n, faultf("remove it, or enforce the policy", "a policy in shadow denies nobody, so that it bans nobody either"))
	case p.keyedBy(everyone):
		r.warn(n, faultf("write a key that tells clients apart, or remove ban", "all clients share one key, and are banned together"))
	}
}
