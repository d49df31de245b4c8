package region

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// Command returns `annona region`.
func Command() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "region",
		Short: "Run a region's agent: leases tokens for its Redis from the allocator",
		Long: "Run a region's agent: it hears in the region's Redis which keys need tokens, leases them from the allocator\n" +
			"over NATS, gives unused ones back, and mirrors the policy document for the gateways. A region may run several.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := Defaults()
			if err := config.Load(path, os.Environ(), &cfg); err != nil {
				return err
			}
			return run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the configuration file, region.yaml")
	return cmd
}

// run is the whole life of an agent's process.
func run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	cfg.Telemetry.Role, cfg.Telemetry.Region = "region", cfg.Region
	tel, err := telemetry.Start(ctx, cfg.Telemetry)
	if err != nil {
		return fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if failed := tel.Shutdown(flush); failed != nil {
			tel.Log.Warn("telemetry not flushed", "error", failed)
		}
	}()
	a, err := Open(ctx, cfg, tel)
	if err != nil {
		return err
	}
	return errors.Join(a.Run(ctx), a.Close())
}
