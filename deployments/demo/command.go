package demo

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// maxOneWay is the longest delay that --wan takes: an agent gives up on an answer after a second.
const maxOneWay = 400 * time.Millisecond

// Command is `annona demo`.
func Command() *cobra.Command {
	o := Options{Places: DefaultPlaces()}
	var policies, logs string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run three regions, an allocator and all they need in this process",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(policies); err != nil {
				return fmt.Errorf("%w: %w", config.ErrUsage, err)
			}
			return run(cmd, o, logs)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&policies, "policies", "", "policy document of the first start (default: a built-in one)")
	flags.StringVar(&o.Upstream, "upstream", "", "URL that requests go to (default: a sample inside)")
	flags.StringSliceVar(&o.Redis, "redis", nil, "real stores, one for each region (default: embedded ones)")
	flags.StringVar(&o.Data, "data", "", "directory that keeps budgets and policies over a restart (default: forget them)")
	flags.DurationVar(&o.OneWay, "wan", 80*time.Millisecond, "delay between a region and the allocator, one way")
	flags.StringVar(&o.Telemetry.OTLP, "otlp", "", "where to send traces, http://host:4318 (default: nowhere)")
	flags.StringVar(&logs, "log", "", "file for the roles' logs (default: only warnings, to standard error)")
	return cmd
}

// complete reads what the flags name and checks it.
func (o *Options) complete(policies string) (err error) {
	if policies != "" {
		if o.Policies, err = os.ReadFile(policies); err != nil {
			return fmt.Errorf("--policies: %w", err)
		}
	}
	if o.Upstream != "" {
		u, err := url.Parse(o.Upstream)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return errors.New("--upstream: give a URL like http://127.0.0.1:9000")
		}
	}
	for _, addr := range o.Redis {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("--redis %q: give host:port", addr)
		}
	}
	if o.OneWay < 0 || o.OneWay > maxOneWay {
		return fmt.Errorf("--wan %s: give 0 to %s", o.OneWay, maxOneWay)
	}
	if o.Token = os.Getenv("ANNONA_ADMIN_TOKEN"); o.Token == "" {
		o.Token = rand.Text()
	}
	return nil
}

func run(cmd *cobra.Command, o Options, logs string) error {
	ctx := cmd.Context()
	o.Telemetry.Role = "demo"
	if o.Telemetry.OTLP != "" {
		o.Telemetry.Sample = 1
	}
	o.Telemetry.Log = warnings{os.Stderr}
	if logs != "" {
		file, err := os.OpenFile(logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("%w: --log: %w", config.ErrUsage, err)
		}
		defer file.Close()
		o.Telemetry.Log = file
	}
	return telemetry.During(ctx, o.Telemetry, func(tel *telemetry.Telemetry) error {
		d, err := Open(ctx, o, tel)
		if err != nil {
			return err
		}
		d.Print(cmd.OutOrStdout())
		return errors.Join(d.Run(ctx), d.Close())
	})
}
