package region

import (
	"errors"
	"fmt"
	"net"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	defaultAdmin = "127.0.0.1:8281"
	defaultNATS  = "nats://127.0.0.1:4222"
)

// Config is region.yaml. Start from [Defaults].
type Config struct {
	// Region is the region's name, as the regions document has it.
	Region string `yaml:"region"`
	// Admin is where probes and metrics are.
	Admin     string           `yaml:"admin"`
	Redis     bucket.Config    `yaml:"redis"`
	NATS      bus.Config       `yaml:"nats"`
	Telemetry telemetry.Config `yaml:"telemetry"`
}

// Defaults returns what holds where region.yaml says nothing.
func Defaults() Config {
	return Config{Admin: defaultAdmin, NATS: bus.Config{URLs: []string{defaultNATS}}}
}

// Validate returns everything that is wrong with c at once, nil if nothing. It reads no file.
func (c Config) Validate() error {
	problems := []error{lease.CheckRegionName(c.Region), c.Redis.Validate(), c.Telemetry.Validate()}
	if _, _, err := net.SplitHostPort(c.Admin); err != nil {
		problems = append(problems, fmt.Errorf("admin %q: give HOST:PORT, like %s", c.Admin, defaultAdmin))
	}
	if len(c.NATS.URLs) == 0 {
		problems = append(problems, fmt.Errorf("nats.urls: name at least one server, like %s", defaultNATS))
	}
	if c.NATS.Replicas != 0 {
		problems = append(problems, errors.New("nats.replicas is the allocator's to say; remove it here"))
	}
	return errors.Join(problems...)
}
