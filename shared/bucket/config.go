package bucket

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The modes of a region's Redis.
const (
	ModeSingle   = "single"
	ModeCluster  = "cluster"
	ModeSentinel = "sentinel"
)

const (
	maxTimeout  = time.Minute
	maxPoolSize = 10_000
	maxAddrs    = 64
)

// Config says how to reach a region's Redis.
type Config struct {
	// Mode is single (also ""), cluster or sentinel.
	Mode string `yaml:"mode"`
	// Addrs are HOST:PORT: the server; some nodes of the cluster, which tell the others; or the sentinels.
	Addrs []string `yaml:"addrs"`
	// Username and PasswordFile are what the servers ask for; sentinels have their own, or none.
	Username             string `yaml:"username"`
	PasswordFile         string `yaml:"password_file"`
	SentinelUsername     string `yaml:"sentinel_username"`
	SentinelPasswordFile string `yaml:"sentinel_password_file"`
	// TLS is for all connections, those to sentinels too.
	TLS TLS `yaml:"tls"`
	// Master is the name that the sentinels know the master by. Only in mode sentinel.
	Master string `yaml:"master"`
	// Timeout is the longest that one request may wait for Redis, at most a minute; default 50 ms.
	Timeout time.Duration `yaml:"timeout"`
	// PoolSize is how many connections a process has to each server; default ten a processor.
	PoolSize int `yaml:"pool_size"`
	// ServerID names the server process where INFO cannot (an embedded store); read from INFO server otherwise.
	ServerID string `yaml:"-"`
	// EpochBegun, if set, hears of every epoch that this process began and why: "missing", "server" or "clock".
	EpochBegun func(shard int, reason string) `yaml:"-"`
}

// TLS is `true`, or a mapping of files and names; the zero value is a connection in clear.
type TLS struct {
	On         bool
	CA         string // file of certificates to trust in place of the system's
	Cert, Key  string // files that this process shows to servers that ask who it is
	ServerName string // what certificates must name in place of the host that is dialled
}

// UnmarshalYAML reads true, false, or {ca, cert, key, server_name}, each of which may be left out.
func (t *TLS) UnmarshalYAML(unmarshal func(any) error) error {
	var on bool
	if unmarshal(&on) == nil {
		*t = TLS{On: on}
		return nil
	}
	var files map[string]string
	if unmarshal(&files) != nil {
		return errors.New("write true, false, or {ca: FILE, cert: FILE, key: FILE, server_name: NAME}")
	}
	into := TLS{On: true}
	fields := map[string]*string{"ca": &into.CA, "cert": &into.Cert, "key": &into.Key, "server_name": &into.ServerName}
	for name, value := range files {
		field := fields[name]
		if field == nil {
			return fmt.Errorf("%s is unknown; known here: ca, cert, key, server_name", name)
		}
		*field = value
	}
	*t = into
	return nil
}

// Validate returns everything that is wrong with c at once, nil if nothing. It reads no file.
func (c Config) Validate() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf("redis."+format, args...)) }
	switch {
	case !slices.Contains([]string{"", ModeSingle, ModeCluster, ModeSentinel}, c.Mode):
		wrong("mode %q: write single, cluster or sentinel", c.Mode)
	case c.Mode == ModeSentinel && c.Master == "":
		wrong("master: name the master as the sentinels know it, such as mymaster")
	case c.Mode != ModeSentinel && c.Master != "":
		wrong("master is for mode sentinel; remove it, or set redis.mode: sentinel")
	}
	if c.Mode != ModeSentinel && c.SentinelUsername+c.SentinelPasswordFile != "" {
		wrong("sentinel_username and sentinel_password_file are for mode sentinel; remove them, or set redis.mode: sentinel")
	}
	c.validateAddrs(wrong)
	for name, pair := range map[string][2]string{
		"": {c.Username, c.PasswordFile}, "sentinel_": {c.SentinelUsername, c.SentinelPasswordFile},
	} {
		if pair[0] != "" && pair[1] == "" {
			wrong("%susername without a password; name its file in redis.%spassword_file", name, name)
		}
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		wrong("tls: cert and key go together; give both files or neither")
	}
	if c.Timeout < 0 || c.Timeout > maxTimeout {
		wrong("timeout %s: give more than 0, at most %s", c.Timeout, maxTimeout)
	}
	if c.PoolSize < 0 || c.PoolSize > maxPoolSize {
		wrong("pool_size %d: give 1 to %d, or 0 for ten a processor", c.PoolSize, maxPoolSize)
	}
	return errors.Join(problems...)
}

func (c Config) validateAddrs(wrong func(string, ...any)) {
	single := c.Mode == "" || c.Mode == ModeSingle
	switch {
	case len(c.Addrs) == 0:
		wrong("addrs: give the region's Redis, such as 127.0.0.1:6379")
	case len(c.Addrs) > maxAddrs:
		wrong("addrs has %d entries; give at most %d, the servers tell the others", len(c.Addrs), maxAddrs)
	case single && len(c.Addrs) > 1:
		wrong("addrs has %d entries; give one, or set redis.mode to cluster or sentinel", len(c.Addrs))
	}
	seen := map[string]bool{}
	for _, addr := range c.Addrs {
		host, text, err := net.SplitHostPort(addr)
		port, problem := strconv.ParseUint(text, 10, 16)
		switch {
		case err != nil || problem != nil || host == "" || port == 0:
			wrong("addrs: %q is no HOST:PORT; write one such as 127.0.0.1:6379", addr)
		case seen[addr]:
			wrong("addrs: %q stands twice; remove one", addr)
		}
		seen[addr] = true
	}
}

// options returns what all connections have in common, but for the address, and what those to sentinels have.
func (c Config) options(timeout time.Duration) (server, sentinel redis.Options, err error) {
	longest := max(VerbTimeout, timeout) // the contexts of calls end sooner; this bounds what has none
	server = redis.Options{
		Username: c.Username, PoolSize: c.PoolSize, Protocol: 2, DisableIdentity: true, PipelinePoolSize: -1,
		// A call whose outcome is unknown is never sent again.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: longest, ReadTimeout: longest, WriteTimeout: longest, PoolTimeout: longest,
	}
	if server.TLSConfig, err = c.TLS.config(); err != nil {
		return server, sentinel, err
	}
	sentinel = server
	sentinel.Username, sentinel.PoolSize = c.SentinelUsername, 1
	if server.Password, err = password("password_file", c.PasswordFile); err != nil {
		return server, sentinel, err
	}
	sentinel.Password, err = password("sentinel_password_file", c.SentinelPasswordFile)
	return server, sentinel, err
}

func password(field, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("redis.%s: %w", field, err)
	}
	word := strings.TrimSpace(string(text))
	if word == "" {
		return "", fmt.Errorf("redis.%s: %s is empty; write the password into it, or remove the field", field, file)
	}
	return word, nil
}

// config reads the files; nil where the connection is in clear.
func (t TLS) config() (*tls.Config, error) {
	if !t.On {
		return nil, nil //nolint:nilnil // go-redis takes nil for a connection in clear
	}
	into := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("redis.tls.ca: %w", err)
		}
		into.RootCAs = x509.NewCertPool()
		if !into.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("redis.tls.ca: %s has no certificate; give one in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("redis.tls: cert %s and key %s: %w", t.Cert, t.Key, err)
		}
		into.Certificates = []tls.Certificate{pair}
	}
	return into, nil
}
