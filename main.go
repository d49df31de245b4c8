// Command annona is every role of the Annona API gateway in one binary: gateway, region, allocator, and the tools around them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // zones of policies work on images without them

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/allocator"
	"github.com/annona-gateway/annona/allocator/admincmd"
	"github.com/annona-gateway/annona/deployments/demo"
	"github.com/annona-gateway/annona/gateway"
	"github.com/annona-gateway/annona/gateway/policycmd"
	"github.com/annona-gateway/annona/region"
	"github.com/annona-gateway/annona/shared/config"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

func main() {
	// Libraries that write to the standard logger quote what they met, an upstream's bytes among it; what matters comes back as
	// an error of the call.
	log.SetOutput(io.Discard) //nolint:forbidigo // it silences, and logs nothing
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs one command line and returns the exit code: 0 good, 2 bad usage or configuration, 1 anything else.
func run(ctx context.Context, args []string) int {
	started := false
	root := &cobra.Command{
		Use:           "annona",
		Short:         "A multi-region API gateway whose rate limits hold globally",
		SilenceUsage:  true,
		SilenceErrors: true,
		// Reached only once the arguments and flags of the command are good.
		PersistentPreRun: func(*cobra.Command, []string) { started = true },
	}
	root.AddCommand(
		demo.Command(), gateway.Command(), region.Command(), allocator.Command(),
		policycmd.Command(), admincmd.Command(), versionCommand(),
	)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "annona:", text)
		}
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "annona:", err)
	if !started || errors.Is(err, config.ErrUsage) {
		return 2
	}
	return 1
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "annona", version)
			return err //nolint:wrapcheck // of standard output
		},
	}
}
