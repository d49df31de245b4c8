package allocator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// TLS names the files of a certificate and its key.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Config is allocator.yaml. DefaultConfig has what a file leaves out.
type Config struct {
	// Listen is the admin API's address. Off loopback it needs TLS, or Insecure where something else encrypts.
	Listen   string `yaml:"listen"`
	TLS      TLS    `yaml:"tls"`
	Insecure bool   `yaml:"insecure"`

	NATS bus.Config `yaml:"nats"`
	// Regions, Shards, Times and PoliciesFile make the documents of the first start; after it the stored ones win.
	Regions      []policy.Region `yaml:"regions"`
	Shards       int             `yaml:"shards"`
	Times        policy.Times    `yaml:"times"`
	PoliciesFile string          `yaml:"policies"`
	// NewKeysPerS is how many new keys a second a region may bring; it is read but not enforced yet.
	NewKeysPerS     int              `yaml:"new_keys_per_s"`
	CredentialsFile string           `yaml:"credentials"`
	HashSecretFile  string           `yaml:"hash_secret_file"`
	Telemetry       telemetry.Config `yaml:"telemetry"`

	// Init starts a new journal, with every pool full.
	Init bool `yaml:"-"`
	// AlsoReady adds checks to /readyz, where one process runs other roles as well.
	AlsoReady func(context.Context) []telemetry.Check `yaml:"-"`
	// Policies, Credentials and Secret stand for the files of their names where a program starts the role, as the demo does.
	Policies    []byte             `yaml:"-"`
	Credentials []admin.Credential `yaml:"-"`
	Secret      []byte             `yaml:"-"`
}

const (
	defaultListen      = "127.0.0.1:7070"
	defaultNATS        = "nats://127.0.0.1:4222"
	defaultNewKeysPerS = 5000
	maxReplicas        = 5
)

// DefaultConfig returns what holds where allocator.yaml says nothing. Times.Margin follows from the other times.
func DefaultConfig() Config {
	times := policy.DefaultTimes()
	times.Margin = 0
	return Config{
		Listen: defaultListen, NATS: bus.Config{URLs: []string{defaultNATS}}, Shards: policy.DefaultShards, Times: times,
		NewKeysPerS: defaultNewKeysPerS,
	}
}

// Validate says everything that is wrong with c at once, nil if nothing. It reads no file.
func (c Config) Validate() error {
	c = c.withDefaults()
	problems := []error{c.checkListen(), c.regions().Check(), c.Telemetry.Validate()}
	for _, region := range c.Regions {
		problems = append(problems, lease.CheckRegionName(region.Name))
	}
	if len(c.NATS.URLs) == 0 {
		problems = append(problems, fmt.Errorf("nats.urls is empty; name at least one server, like %s", defaultNATS))
	}
	if c.NATS.Replicas < 0 || c.NATS.Replicas > maxReplicas {
		problems = append(problems, fmt.Errorf("nats.replicas %d: give 1 to %d, or 0 for the most up to 3 that the servers allow",
			c.NATS.Replicas, maxReplicas))
	}
	if c.NewKeysPerS < 0 {
		problems = append(problems, fmt.Errorf("new_keys_per_s %d: give 0 or more", c.NewKeysPerS))
	}
	if c.CredentialsFile == "" && len(c.Credentials) == 0 {
		problems = append(problems,
			errors.New("credentials: name a file with a list of {name, role, sha256}; nobody could use the admin API without"))
	}
	if c.HashSecretFile == "" && len(c.Secret) == 0 {
		problems = append(problems, errors.New("hash_secret_file: name the file with the secret that all roles share"))
	}
	return errors.Join(problems...)
}

// withDefaults fills in what a Config made by hand left zero, so that a program need name only what it cares about.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Shards == 0 {
		c.Shards = d.Shards
	}
	if c.Times == (policy.Times{}) {
		c.Times = d.Times
	}
	if c.Times.Margin == 0 {
		c.Times.Margin = c.Times.DefaultMargin()
	}
	return c
}

// regions returns the regions document that c describes.
func (c Config) regions() *policy.Regions {
	return &policy.Regions{Regions: c.Regions, Shards: c.Shards, Times: c.Times}
}

func (c Config) checkListen() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen %q: give HOST:PORT, like %s", c.Listen, defaultListen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("listen %q: the port must be a number from 0 to 65535", c.Listen)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return errors.New("tls: give both cert and key, or neither")
	}
	if c.TLS.Cert == "" && !c.Insecure && !isLoopback(host) {
		return fmt.Errorf("listen %q is reachable from other machines: give tls {cert, key}, "+
			"or insecure: true where something else encrypts", c.Listen)
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
