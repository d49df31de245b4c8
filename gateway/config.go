package gateway

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// The words of `enforcement`, `access_log` and `reset`.
const (
	on    = "on"
	off   = "off"
	shade = "shadow"
	asLog = "json"
	epoch = "epoch"
)

// Config is gateway.yaml. Start from [Defaults].
type Config struct {
	Region string `yaml:"region"`
	// Listen is where clients come, Admin where probes and metrics are.
	Listen   string          `yaml:"listen"`
	Admin    string          `yaml:"admin"`
	Redis    bucket.Config   `yaml:"redis"`
	Routes   []proxy.Route   `yaml:"routes"`
	Identity identity.Config `yaml:"identity"`
	Headers  HeaderSets      `yaml:"headers"`
	// Reset is "" for seconds from now, or epoch: X-RateLimit-Reset is then a Unix time.
	Reset string `yaml:"reset"`
	// RetryJitter spreads the clients that were denied together, as a share of their wait. 0: not at all.
	RetryJitter config.Percent `yaml:"retry_jitter"`
	// Enforcement is on, or shadow: the local red button.
	Enforcement string `yaml:"enforcement"`
	AccessLog   string `yaml:"access_log"`
	// Policies is a policy document for a cold start: what the region's Redis holds wins.
	Policies string `yaml:"policies"`
	// Drain is how it ends.
	Drain DrainConfig `yaml:"drain"`
	// Check says who may ask /v1/check and /v1/usage on the admin port.
	Check     CheckConfig      `yaml:"check"`
	Telemetry telemetry.Config `yaml:"telemetry"`
	// TLS is for clients; without it they come in clear.
	TLS *TLS `yaml:"tls"`

	// ClientAddress says whose word on a client's address counts.
	ClientAddress identity.AddressConfig `yaml:"client_address"`

	// Keys replaces the file of API keys, Secret the hash secret file.
	Keys   identity.Lookup `yaml:"-"`
	Secret []byte          `yaml:"-"`
	// Reread reads the configuration again for a reload; nil: a reload reads the files only that this one names.
	Reread func() (Config, error) `yaml:"-"`

	patience *patience // in tests
}

// Defaults returns the settings that stand where gateway.yaml says nothing.
func Defaults() Config {
	return Config{
		Listen: ":8081", Admin: "127.0.0.1:8181",
		Headers: HeaderSets{HeadersIETF, HeadersX}, RetryJitter: 0.1, Enforcement: on, AccessLog: asLog,
		Drain: DrainConfig{Delay: defaultDrainDelay, Timeout: defaultDrainTimeout},
	}
}

// Validate returns everything that is wrong with c, nil if nothing.
func (c Config) Validate() error {
	problems := []error{
		lease.CheckRegionName(c.Region), c.Identity.Validate(), c.ClientAddress.Validate(), c.Headers.validate(), c.Telemetry.Validate(),
		c.TLS.validate(), c.Drain.validate(),
	}
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for name, address := range map[string]string{"listen": c.Listen, "admin": c.Admin} {
		if _, _, err := net.SplitHostPort(address); err != nil {
			wrong("%s %q: give HOST:PORT, such as :8081", name, address)
		}
	}
	if len(c.Redis.Addrs) == 0 {
		wrong("redis.addrs: give the region's Redis, such as 127.0.0.1:6379")
	}
	if len(c.Routes) == 0 {
		wrong("routes: give at least one")
	}
	names := map[string]bool{}
	for _, route := range c.Routes {
		problems = append(problems, route.Validate())
		if names[route.Name] {
			wrong("route %q stands twice; rename one", route.Name)
		}
		names[route.Name] = true
	}
	switch {
	case c.Secret == nil && c.Identity.HashSecretFile == "":
		wrong("identity.hash_secret_file: name the file with the secret that all roles share")
	case c.Secret != nil && len(c.Secret) < limit.MinSecret:
		wrong("the hash secret is too short; give at least %d bytes", limit.MinSecret)
	}
	oneOf(wrong, "enforcement", c.Enforcement, on, shade)
	oneOf(wrong, "access_log", c.AccessLog, asLog, off)
	oneOf(wrong, "reset", c.Reset, "", epoch)
	if c.RetryJitter < 0 || c.RetryJitter > 1 {
		wrong("retry_jitter: give 0%% to 100%%")
	}
	return errors.Join(problems...)
}

func oneOf(wrong func(string, ...any), name, value string, words ...string) {
	if !slices.Contains(words, value) {
		wrong("%s %q: write %s", name, value, strings.TrimPrefix(strings.Join(words, " or "), " or "))
	}
}

// The sets of header fields that tell a client its limits.
const (
	HeadersIETF    = "ietf"
	HeadersX       = "x-ratelimit"
	HeadersDraft06 = "draft-06"
)

// HeaderSets are the sets to send, as a list or one word; `off` (or an empty list) sends none.
type HeaderSets []string

// UnmarshalYAML reads a list, or words with commas between them.
func (h *HeaderSets) UnmarshalYAML(unmarshal func(any) error) error {
	var list []string
	if err := unmarshal(&list); err != nil {
		var text string
		if err := unmarshal(&text); err != nil {
			return errors.New("write a list of ietf, x-ratelimit, draft-06, or off")
		}
		list = strings.Split(text, ",")
	}
	*h = HeaderSets{}
	for _, word := range list {
		if word = strings.TrimSpace(word); word != off {
			*h = append(*h, word)
		}
	}
	return h.validate()
}

func (h HeaderSets) validate() error {
	for _, word := range h {
		if word != HeadersIETF && word != HeadersX && word != HeadersDraft06 {
			return fmt.Errorf("headers: %q is none of ietf, x-ratelimit, draft-06, off", word)
		}
	}
	return nil
}

func (h HeaderSets) has(word string) bool { return slices.Contains(h, word) }
