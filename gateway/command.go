package gateway

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

// Command is `annona gateway`.
func Command() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "gateway --config FILE",
		Short: "Serve one region's clients: admit, deny or refuse their requests and carry them to the upstream",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), file) },
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration, gateway.yaml; the environment (ANNONA_...) wins over it")
	return cmd
}

// read reads gateway.yaml and the environment.
func read(file string) (Config, error) {
	cfg := Defaults()
	err := config.Load(file, os.Environ(), &cfg)
	cfg.Telemetry.Role, cfg.Telemetry.Region = "gateway", cfg.Region
	return cfg, err
}

func serve(ctx context.Context, file string) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // from the beginning: one that comes early must not kill
	defer signal.Stop(hangup)
	cfg, err := read(file)
	if err != nil {
		return err
	}
	cfg.Reread = func() (Config, error) { return read(file) }
	if err = cfg.Validate(); err != nil {
		return fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	return telemetry.During(ctx, cfg.Telemetry, func(tel *telemetry.Telemetry) error {
		g, err := Open(ctx, cfg, tel)
		if err != nil {
			return err
		}
		stop := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() { g.reloadOn(ctx, hangup, stop) })
		err = g.Run(ctx)
		close(stop)
		group.Wait()
		return errors.Join(err, g.Close())
	})
}

// reloadOn reloads at every hangup until stop is closed.
func (g *Gateway) reloadOn(ctx context.Context, hangup <-chan os.Signal, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-hangup:
			_ = g.Reload(ctx) // in the log
		}
	}
}
