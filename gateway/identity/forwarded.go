package identity

import (
	"net/netip"
	"strings"
)

// chain reads the elements of a header that each proxy appended to, the newest first. It reads from the right, also where a
// quote begins: what our proxies wrote is the end of the text, and is read the same whatever stands before it.
type chain struct {
	lines  []string // in their order, the last one next
	rest   string   // of the line being read
	inside bool     // a line is being read
	quotes bool     // commas in quotes are part of an element
}

func (c *chain) next() (element string, ok bool) {
	if !c.inside {
		if len(c.lines) == 0 {
			return "", false
		}
		c.rest, c.lines, c.inside = c.lines[len(c.lines)-1], c.lines[:len(c.lines)-1], true
	}
	comma := strings.LastIndexByte(c.rest, ',')
	if c.quotes {
		comma = lastComma(c.rest)
	}
	element = strings.Trim(c.rest[comma+1:], " \t")
	if comma < 0 {
		c.inside = false
	} else {
		c.rest = c.rest[:comma]
	}
	return element, true
}

// lastComma finds the last comma outside quotes, -1 if there is none.
func lastComma(text string) int {
	quoted := false
	for i := len(text) - 1; i >= 0; i-- {
		switch text[i] {
		case '"':
			before := strings.TrimRight(text[:i], `\`)
			escaped := (i-len(before))%2 == 1
			if !escaped {
				quoted = !quoted
			}
			i = len(before) // the backslashes are looked at
		case ',':
			if !quoted {
				return i
			}
		}
	}
	return -1
}

// forwardedFor returns the node that an element of Forwarded (RFC 7239) names with `for`, if it names just one.
func forwardedFor(element string) (node string, ok bool) {
	for rest := element; rest != ""; {
		name, after, found := strings.Cut(rest, "=")
		if !found {
			return "", false
		}
		var value string
		if value, rest, found = forwardedValue(after); !found {
			return "", false
		}
		name = strings.TrimLeft(name, " \t")
		if !isHeaderName(name) {
			return "", false
		}
		if strings.EqualFold(name, "for") {
			if ok {
				return "", false
			}
			node, ok = value, true
		}
	}
	return node, ok
}

// forwardedValue reads a token or a quoted string, and the semicolon behind it.
func forwardedValue(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		value, rest, _ = strings.Cut(text, ";")
		value = strings.TrimRight(value, " \t")
		return value, rest, value != "" && !strings.ContainsAny(value, "\", \t")
	}
	var plain strings.Builder
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text):
			i++
			plain.WriteByte(text[i])
		case text[i] == '"':
			rest = strings.TrimLeft(text[i+1:], " \t")
			after, more := strings.CutPrefix(rest, ";")
			return plain.String(), after, more || rest == ""
		default:
			plain.WriteByte(text[i])
		}
	}
	return "", "", false
}

// parseNode reads an address with or without a port; an IPv6 address with a port has brackets. `unknown` and names that hide an
// address (_x) are none.
func parseNode(text string) (netip.Addr, bool) {
	const longest = len("[0000:0000:0000:0000:0000:ffff:255.255.255.255%0123456789abcdef]:65535")
	if len(text) > longest {
		return netip.Addr{}, false
	}
	if inner, bracketed := strings.CutPrefix(text, "["); bracketed {
		host, after, closed := strings.Cut(inner, "]")
		port, hasPort := strings.CutPrefix(after, ":")
		if !closed || strings.IndexByte(host, ':') < 0 || (hasPort && !isPort(port)) || (!hasPort && after != "") {
			return netip.Addr{}, false
		}
		return plainAddr(host)
	}
	if host, port, ok := strings.Cut(text, ":"); ok && strings.IndexByte(port, ':') < 0 {
		if !isPort(port) {
			return netip.Addr{}, false
		}
		text = host
	}
	return plainAddr(text)
}

// isPort tells whether text is a port, or the hidden one of RFC 7239.
func isPort(text string) bool {
	if hidden, ok := strings.CutPrefix(text, "_"); ok {
		return hidden != "" && isHeaderName(hidden)
	}
	return text != "" && len(text) <= 5 && strings.Trim(text, "0123456789") == ""
}

// plainAddr reads an address in its one form: IPv4 as such, without a zone. The unspecified address is nobody's.
func plainAddr(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, false
	}
	addr = addr.Unmap().WithZone("")
	return addr, !addr.IsUnspecified()
}
