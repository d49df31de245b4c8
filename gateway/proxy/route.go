package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/config"
)

// Defaults of a route.
const (
	DefaultTimeout = 30 * time.Second
	DefaultMaxBody = 10 << 20
)

// Route is one entry of gateway.yaml's `routes`: which requests go to which upstreams. The first route that matches wins.
type Route struct {
	Name string `yaml:"name"`
	// Hosts are exact names or "*.x"; empty: any. Paths are exact, or "/x/*": /x and all under it; empty: any.
	Hosts []string `yaml:"hosts"`
	Paths []string `yaml:"paths"`
	// Upstreams are base URLs, used in turn.
	Upstreams []string `yaml:"upstreams"`
	// StripPrefix is taken off the path, whole segments only, before it is forwarded.
	StripPrefix string  `yaml:"strip_prefix"`
	Forward     Forward `yaml:"forward"`
	// Timeout is how long the upstream may take until its response headers; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// MaxBody bounds a request's body; default 10 MiB.
	MaxBody config.Bytes `yaml:"max_body"`
}

// Forward names the headers in which the upstream gets the verified identity. A client's own are stripped.
type Forward struct {
	User string `yaml:"user"`
	Tier string `yaml:"tier"`
	// Claims are headers by the claim that they carry.
	Claims map[string]string `yaml:"claims"`
}

// Validate returns everything that is wrong with r, nil if nothing.
func (r Route) Validate() error {
	var problems []error
	wrong := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("route %q: "+format, append([]any{r.Name}, args...)...))
	}
	if r.Name == "" {
		wrong("it has no name; give it one")
	}
	if len(r.Upstreams) == 0 {
		wrong("it has no upstreams; give at least one URL")
	}
	for _, upstream := range r.Upstreams {
		if !isBase(upstream) {
			wrong("upstream is not a URL like http://host:port")
		}
	}
	for _, path := range r.Paths {
		if !strings.HasPrefix(path, "/") || strings.Contains(strings.TrimSuffix(path, "/*"), "*") {
			wrong("path %q: write /x, or /x/* for all under it", path)
		}
	}
	for _, host := range r.Hosts {
		if host == "" || strings.Contains(strings.TrimPrefix(host, "*."), "*") || strings.ContainsAny(host, ":/ ") {
			wrong("host %q: write a name without port, or *.name", host)
		}
	}
	if r.StripPrefix != "" && (!strings.HasPrefix(r.StripPrefix, "/") || strings.HasSuffix(r.StripPrefix, "/")) {
		wrong("strip_prefix %q: write /x", r.StripPrefix)
	}
	for _, problem := range r.Forward.problems() {
		wrong("forward%s", problem)
	}
	if r.Timeout < 0 || r.MaxBody < 0 {
		wrong("timeout and max_body must not be negative")
	}
	return errors.Join(problems...)
}

// isBase tells whether text is a URL to put paths below. One with a credential is not: it would show in errors and logs.
func isBase(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// matches tells whether r takes a request to host for path.
func (r Route) matches(host, path string) bool {
	return anyMatches(r.Hosts, host, hostMatches) && anyMatches(r.Paths, path, pathMatches)
}

func anyMatches(patterns []string, text string, matches func(pattern, text string) bool) bool {
	for _, pattern := range patterns {
		if matches(pattern, text) {
			return true
		}
	}
	return len(patterns) == 0
}

func hostMatches(pattern, host string) bool {
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return len(host) > len(suffix) && strings.EqualFold(host[len(host)-len(suffix):], suffix)
	}
	return strings.EqualFold(pattern, host)
}

func pathMatches(pattern, path string) bool {
	if base, ok := strings.CutSuffix(pattern, "/*"); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return pattern == path
}

// hostname is host without its port and trailing dot.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(host, ".")
}

// stripped is what is left of path without prefix, if prefix is whole segments of it.
func stripped(path, prefix string) string {
	rest, ok := strings.CutPrefix(path, prefix)
	switch {
	case !ok || prefix == "":
		return path
	case rest == "":
		return "/"
	case rest[0] != '/':
		return path
	}
	return rest
}
