package proxy

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// Normalise returns the path of u in the one form that policies match and the upstream gets. What differs between the two
// would be a way around a limit, so there is no other place that interprets a path:
//
//   - it is decoded once (a second decoding is the upstream's own business: "%252e" stays the text "%2e");
//   - "." and ".." are resolved and repeated slashes count once, as upstreams commonly do after us;
//   - a path that leaves the root, is not absolute, is not UTF-8 (an overlong "/" is not), or has a control character, a
//     backslash or a raw "#" is an [ErrPath]; so is a "#" anywhere behind it;
//   - a ";" is text like any other, and is forwarded as %3B so that it stays that.
//
// A trailing slash is kept: "/x" and "/x/" are two paths.
func Normalise(u *url.URL) (string, error) {
	raw := u.RawPath
	if raw == "" {
		raw = u.EscapedPath()
	}
	// The URL decoded once already. Doing it again from what was sent tells a raw "#" from an encoded one.
	path, err := url.PathUnescape(raw)
	if err != nil || path != u.Path {
		return "", fmt.Errorf("%w: it has a bad escape", ErrPath)
	}
	switch {
	case path == "" && u.Scheme != "":
		return "/", nil // absolute form without a path; CONNECT has neither
	case !strings.HasPrefix(path, "/"):
		return "", fmt.Errorf("%w: it does not start with /", ErrPath)
	case strings.Contains(raw, "#") || strings.Contains(u.RawQuery, "#"):
		return "", fmt.Errorf("%w: it has a fragment", ErrPath)
	case !utf8.ValidString(path):
		return "", fmt.Errorf("%w: it is not UTF-8", ErrPath)
	case strings.ContainsFunc(path, forbidden):
		return "", fmt.Errorf("%w: it has a control character or a backslash", ErrPath)
	}
	return resolve(path)
}

func forbidden(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' }

// resolve walks the segments of an absolute path.
func resolve(path string) (string, error) {
	if !strings.Contains(path, "//") && !strings.Contains(path, "/.") {
		return path, nil
	}
	segments := strings.Split(path[1:], "/")
	kept := make([]string, 0, len(segments))
	for i, segment := range segments {
		last := i == len(segments)-1
		switch segment {
		case "..":
			if len(kept) == 0 {
				return "", fmt.Errorf("%w: it leaves the root", ErrPath)
			}
			kept = kept[:len(kept)-1]
		case ".", "":
		default:
			kept = append(kept, segment)
			continue
		}
		if last {
			kept = append(kept, "")
		}
	}
	return "/" + strings.Join(kept, "/"), nil
}
