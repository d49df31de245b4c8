package allocator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// Command returns `annona allocator`.
func Command() *cobra.Command {
	var path string
	cfg := DefaultConfig()
	cmd := &cobra.Command{
		Use:   "allocator",
		Short: "Run the allocator: leases tokens to regions, serves the admin API",
		Long: "Run the allocator: it leases tokens to regions over NATS and serves the admin API.\n\n" +
			"The very first start of a deployment needs --init, which begins a journal with every pool full. With a journal\n" +
			"--init is refused, without one so is a start without --init: a lost journal must not hand every quota out again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Load(path, os.Environ(), &cfg); err != nil {
				return err
			}
			return run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the configuration file, allocator.yaml")
	cmd.Flags().BoolVar(&cfg.Init, "init", false, "begin a new journal; refused where there is one")
	return cmd
}

// run is the whole life of an allocator process.
func run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	cfg.Telemetry.Role = "allocator"
	tel, err := telemetry.Start(ctx, cfg.Telemetry)
	if err != nil {
		return fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if failed := tel.Shutdown(flush); failed != nil {
			tel.Log.Warn("telemetry not flushed", "error", failed)
		}
	}()
	a, err := Open(ctx, cfg, tel)
	if err != nil {
		return err
	}
	stop := reloadOnHangup(a)
	defer stop()
	return errors.Join(a.Run(ctx), a.Close())
}

// reloadOnHangup reads the credentials again on SIGHUP, until stop is called.
func reloadOnHangup(a *Allocator) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	var wait sync.WaitGroup
	wait.Go(func() {
		for range hangups {
			if err := a.Reload(); err != nil {
				a.tel.Log.Error("credentials not reloaded; the ones before stay", "error", err)
			}
		}
	})
	return func() {
		signal.Stop(hangups)
		close(hangups)
		wait.Wait()
	}
}
