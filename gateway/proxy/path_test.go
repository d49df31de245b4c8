package proxy_test

import (
	"errors"
	"net/url"
	"testing"

	"github.com/annona-gateway/annona/gateway/proxy"
)

func TestNormalise(t *testing.T) {
	for target, want := range map[string]string{
		"/":                   "/",
		"/v1/x":               "/v1/x",
		"/v1/x/":              "/v1/x/",
		"/v1//x":              "/v1/x",
		"//v1/x":              "/v1/x",
		"/v1/./x":             "/v1/x",
		"/v1/a/../x":          "/v1/x",
		"/v1/a/..":            "/v1/",
		"/v1/a/.":             "/v1/a/",
		"/v1/%2e%2e/x":        "/x",
		"/v1%2fx":             "/v1/x",
		"/v1/%252e%252e/x":    "/v1/%2e%2e/x",
		"/v1/a%23b":           "/v1/a#b",
		"/v1/a%3Fb":           "/v1/a?b",
		"/v1/%C3%A9":          "/v1/é",
		"/.well-known/x":      "/.well-known/x",
		"/a;b/..;/c":          "/a;b/..;/c",
		"/a/..b":              "/a/..b",
		"//":                  "/",
		"http://host":         "/",
		"http://host/v1/../x": "/x",
	} {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatalf("ParseRequestURI(%q): %v", target, err)
		}
		if got, err := proxy.Normalise(u); err != nil || got != want {
			t.Errorf("Normalise(%q) = %q, %v, want %q", target, got, err, want)
		}
	}
}

func TestNormaliseRefuses(t *testing.T) {
	for _, target := range []string{"/a%00b", "/a#b", "/../x", "/v1/../../x", "/%2e%2e/x", "/a%0ab", "/a%7f", "/a%5cb", "*", "/a/../..", "/a%c0%afb", "/%ff", "/a?b#c"} {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatalf("ParseRequestURI(%q): %v", target, err)
		}
		if got, err := proxy.Normalise(u); !errors.Is(err, proxy.ErrPath) {
			t.Errorf("Normalise(%q) = %q, %v, want %v", target, got, err, proxy.ErrPath)
		}
	}
	if _, err := proxy.Normalise(&url.URL{}); !errors.Is(err, proxy.ErrPath) {
		t.Error("Normalise accepted a request without a path")
	}
}

// What is forwarded, read again, is what was matched: the two cannot differ.
func FuzzNormaliseIsStable(f *testing.F) {
	for _, seed := range []string{"/v1/x", "/a/../b", "/%2e%2e", "/a%2fb", "//", "/a%00", "/a#b", "/%25", "/é/.."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		path, err := proxy.Normalise(u)
		if err != nil {
			return
		}
		sent, err := url.ParseRequestURI((&url.URL{Path: path}).EscapedPath())
		if err != nil {
			t.Fatalf("Normalise(%q) = %q, which cannot be forwarded: %v", target, path, err)
		}
		if again, err := proxy.Normalise(sent); err != nil || again != path {
			t.Fatalf("Normalise(%q) = %q, but what is forwarded reads as %q, %v", target, path, again, err)
		}
	})
}
