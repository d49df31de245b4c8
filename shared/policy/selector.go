package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Selector names clients: all of its fields must hold, and its zero value is everyone.
type Selector struct {
	User, APIKey, Tier string
	// IP is a network, or one address.
	IP     netip.Prefix
	Claims map[string]string
}

// Selects tells whether s names id.
func (s *Selector) Selects(id *Identity) bool {
	switch {
	case s.User != "" && s.User != id.User, s.APIKey != "" && s.APIKey != id.APIKey, s.Tier != "" && s.Tier != id.Tier:
		return false
	case s.IP.IsValid() && !s.IP.Contains(id.IP.Unmap().WithZone("")):
		return false
	}
	for name, value := range s.Claims {
		if id.Claims[name] != value {
			return false
		}
	}
	return true
}

// covers tells whether s names everyone whom other names.
func (s *Selector) covers(other *Selector) bool {
	within := func(mine, theirs string) bool { return mine == "" || mine == theirs }
	if !within(s.User, other.User) || !within(s.APIKey, other.APIKey) || !within(s.Tier, other.Tier) {
		return false
	}
	if s.IP.IsValid() && (!other.IP.IsValid() || s.IP.Bits() > other.IP.Bits() || !s.IP.Contains(other.IP.Addr())) {
		return false
	}
	for name, value := range s.Claims {
		if other.Claims[name] != value {
			return false
		}
	}
	return true
}

// fields returns s as pairs of names and values, in one order.
func (s *Selector) fields() [][2]string {
	var fields [][2]string
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, [2]string{name, value})
		}
	}
	add("user", s.User)
	add("api_key", s.APIKey)
	if s.IP.IsValid() {
		add("ip", s.IP.String())
	}
	add("tier", s.Tier)
	for _, name := range slices.Sorted(maps.Keys(s.Claims)) {
		add(claimPart+name, s.Claims[name])
	}
	return fields
}

// canonical writes s so that different selectors have different texts.
func (s *Selector) canonical() string {
	var text strings.Builder
	for _, field := range s.fields() {
		text.WriteString(strconv.Quote(field[0]) + "=" + strconv.Quote(field[1]) + ",")
	}
	return text.String()
}

// String writes s for a person: "user=acme,tier=free", or "everyone".
func (s *Selector) String() string {
	var texts []string
	for _, field := range s.fields() {
		texts = append(texts, shown(field[0])+"="+shown(field[1]))
	}
	if len(texts) == 0 {
		return "everyone"
	}
	return strings.Join(texts, ",")
}

// selectorFields are those of a selector, besides claim:NAME.
var selectorFields = []string{"user", "api_key", "ip", "tier"}

const (
	selectorRemedy = "write {user: NAME}, {api_key: SHA-256}, {ip: 10.0.0.0/8}, {tier: NAME} or {\"claim:NAME\": VALUE}"
	// maxValue bounds the values that a document names, in bytes.
	maxValue = 256
	// hexSHA256 is how long a SHA-256 is in hexadecimal.
	hexSHA256 = 64
)

// selector reads whom an exemption or an override is for. ok is false where something was refused.
func (r *reader) selector(n *node) (s Selector, ok bool) {
	if !r.is(n, mapping, selectorRemedy) {
		return s, false
	}
	before := r.errors
	plain := *n
	plain.items = nil
	for _, item := range n.items {
		name, isClaim := strings.CutPrefix(item.name, claimPart)
		switch {
		case item.name == "claim": // in braces the YAML parser ends a name at its first colon
			r.refuseName(item, faultf("write the name in quotes: {\"claim:NAME\": VALUE}", "claim has no name"))
		case !isClaim:
			plain.items = append(plain.items, item)
		case !r.claimName(item, name):
		case s.Claims[name] != "":
			r.refuseName(item, faultf("remove one", "%s stands twice", shown(item.name)))
		default:
			if s.Claims == nil {
				s.Claims = map[string]string{}
			}
			s.Claims[name] = r.value(item)
		}
	}
	found := r.fields(&plain, selectorFields)
	for _, name := range selectorFields {
		item := found[name]
		if item == nil {
			continue
		}
		switch name {
		case "user":
			s.User = r.value(item)
		case "api_key":
			s.APIKey = r.apiKey(item)
		case "ip":
			s.IP = r.network(item)
		case "tier":
			s.Tier = r.token(item, tierLetters)
		}
	}
	return s, r.errors == before
}

// value reads one that a request's must equal.
func (r *reader) value(n *node) string {
	text, ok := r.text(n, "write the one value that it must have")
	if ok {
		if f := valueFault(text); f != nil {
			r.refuse(n, f)
		}
	}
	return text
}

func valueFault(text string) *fault {
	remedy := fmt.Sprintf("write 1 to %d printable bytes", maxValue)
	switch {
	case text == "":
		return faultf(remedy, "an empty value is the same as none, and never matches")
	case len(text) > maxValue:
		return faultf(remedy, "the value %s is longer than %d bytes", shown(text), maxValue)
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return faultf(remedy, "the value %s holds a control character", shown(text))
	}
	return nil
}

// apiKey reads the name under which a credential is known, and shows nothing of what may be the credential itself.
func (r *reader) apiKey(n *node) string {
	const remedy = "write the 64 hexadecimal digits of the key's SHA-256, as in the file of API keys; never the key itself"
	text, ok := r.text(n, remedy)
	if !ok {
		return ""
	}
	text = strings.ToLower(text)
	if len(text) != hexSHA256 || strings.Trim(text, "0123456789abcdef") != "" {
		r.refuse(n, faultf(remedy, "this api_key is no SHA-256"))
	}
	return text
}

// network reads a network such as 10.0.0.0/8, or one address.
func (r *reader) network(n *node) netip.Prefix {
	const remedy = "write a network such as 10.0.0.0/8 or 2001:db8::/32, or one address"
	text, ok := r.text(n, remedy)
	if !ok {
		return netip.Prefix{}
	}
	prefix, err := netip.ParsePrefix(text)
	if !strings.Contains(text, "/") {
		var address netip.Addr
		if address, err = netip.ParseAddr(text); err == nil && address.Zone() == "" {
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
	}
	switch {
	case err != nil || !prefix.IsValid():
		r.refuse(n, faultf(remedy, "%s is no network", shown(text)))
	case prefix.Addr().Is4In6():
		r.refuse(n, faultf("write it as an IPv4 network", "%s never matches: IPv4 clients have IPv4 addresses here, however they came", shown(text)))
	case prefix.Masked() != prefix:
		r.refuse(n, faultf("write "+prefix.Masked().String()+", or the one address without /", "%s has bits beyond its length", shown(text)))
	case prefix.Bits() == 0:
		r.warn(n, faultf("write a smaller network", "%s is every address of its kind", text))
	}
	return prefix
}

// maxExempt is how many exemptions a document may have: each request is compared with all of them.
const maxExempt = 256

// exempt reads whom no policy applies to.
func (r *reader) exempt(d *Document, n *node) {
	if !r.is(n, list, "write a list such as [{ip: 10.0.0.0/8}, {user: monitor}]") {
		return
	}
	if len(n.items) > maxExempt {
		r.refuse(n, faultf("exempt a network or a tier", "there are %d exemptions, more than %d", len(n.items), maxExempt))
		return
	}
	for _, item := range n.items {
		if item.kind == mapping && len(item.items) == 0 {
			r.refuse(item, faultf("say whom: "+selectorRemedy, "this exempts everyone, so that no policy would ever apply"))
			continue
		}
		s, ok := r.selector(item)
		if !ok {
			continue
		}
		for i := range d.Exempt {
			if d.Exempt[i].covers(&s) {
				r.warn(item, faultf("remove it", "%s is exempt already, by %s", &s, &d.Exempt[i]))
				break
			}
		}
		d.Exempt = append(d.Exempt, s)
	}
}

// Exempts tells whether d applies no policy to id.
func (d *Document) Exempts(id *Identity) bool {
	for i := range d.Exempt {
		if d.Exempt[i].Selects(id) {
			return true
		}
	}
	return false
}
