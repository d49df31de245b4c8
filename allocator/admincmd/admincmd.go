// Package admincmd is `annona admin`: the allocator's admin API on the command line. It asks, prints and decides nothing.
package admincmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/config"
)

// tokenVariable is where the token comes from; on the command line every user of the machine could read it.
const tokenVariable = "ANNONA_ADMIN_TOKEN"

// policyFlag names a policy, on the command line and in the API.
const policyFlag = "policy"

const defaultServer = "http://127.0.0.1:7070"

// options are the flags of every subcommand.
type options struct {
	server    string
	tokenFile string
	json      bool
}

// Command returns `annona admin`.
func Command() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Ask and change a running allocator",
		Long: "Ask and change a running allocator through its admin API.\n\nThe token is read from " + tokenVariable +
			", or from --token-file. Exit code 1: the allocator refused or did not answer; 2: bad usage.",
		Args: cobra.NoArgs,
		RunE: help,
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.server, "server", defaultServer, "where the allocator's admin API is")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the bearer token (default: the variable "+tokenVariable+")")
	flags.BoolVar(&o.json, "json", false, "print the API's JSON as it is")
	cmd.AddCommand(policyCommand(o), regionsCommand(o), leasesCommand(o), usageCommand(o))
	return cmd
}

// help is what a command with subcommands does by itself; without it a misspelt subcommand would be no error.
func help(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// client returns a client of o's server for one command.
func (o *options) client(cmd *cobra.Command) (*client, error) {
	token := os.Getenv(tokenVariable)
	if o.tokenFile != "" {
		raw, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return nil, usageError("--token-file: %w", err)
		}
		token = string(raw)
	}
	if token = strings.TrimSpace(token); token == "" {
		return nil, usageError("no token; set %s or give --token-file", tokenVariable)
	}
	return newClient(o.server, token, cmd.OutOrStdout(), o.json)
}

func usageError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", config.ErrUsage, fmt.Errorf(format, args...))
}

func policyCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Read or replace the policy document", Args: cobra.NoArgs, RunE: help}
	cmd.AddCommand(
		&cobra.Command{
			Use: "get", Short: "Print the policy document in force, as it was written", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				c, err := o.client(cmd)
				if err != nil {
					return err
				}
				return policyGet(cmd.Context(), c)
			},
		},
		&cobra.Command{
			Use: "apply FILE", Short: "Replace the policy document by FILE (YAML, or JSON by its name's end)", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				source, err := readDocument(args[0])
				if err != nil {
					return err
				}
				c, err := o.client(cmd)
				if err != nil {
					return err
				}
				return policyApply(cmd.Context(), c, args[0], source)
			},
		},
	)
	return cmd
}

// readDocument reads a policy file, refusing early one that the API would refuse for its size.
func readDocument(path string) ([]byte, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, usageError("%w", err)
	}
	source, err := io.ReadAll(io.LimitReader(file, admin.MaxDocumentBytes+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, usageError("%w", err)
	}
	if len(source) > admin.MaxDocumentBytes {
		return nil, usageError("%s: a policy document has at most %d bytes", path, admin.MaxDocumentBytes)
	}
	return source, nil
}

func regionsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "regions", Short: "List regions: share, state, tokens leased", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client(cmd)
			if err != nil {
				return err
			}
			return regions(cmd.Context(), c, time.Now())
		},
	}
}

func leasesCommand(o *options) *cobra.Command {
	var q leaseFlags
	cmd := &cobra.Command{
		Use: "leases", Short: "List who holds which tokens, until when", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client(cmd)
			if err != nil {
				return err
			}
			return leases(cmd.Context(), c, q)
		},
	}
	cmd.Flags().StringVar(&q.policy, policyFlag, "", "only of this policy")
	cmd.Flags().StringVar(&q.region, "region", "", "only what this region holds")
	cmd.Flags().StringVar(&q.keyID, "key-id", "", "only of this key")
	cmd.Flags().StringVar(&q.cursor, "cursor", "", "go on where a page before ended")
	return cmd
}

func usageCommand(o *options) *cobra.Command {
	var who identityFlags
	cmd := &cobra.Command{
		Use:   "usage --policy NAME [--user NAME] [--api-key KEY] [--ip ADDRESS] [--tier NAME]",
		Short: "Show one client's tokens under one policy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := who.request()
			if err != nil {
				return err
			}
			c, err := o.client(cmd)
			if err != nil {
				return err
			}
			return usage(cmd.Context(), c, request, time.Now())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&who.policy, policyFlag, "", "the policy's name")
	flags.StringVar(&who.user, "user", "", "the client's user name")
	flags.StringVar(&who.apiKey, "api-key", "", "the client's API key, or its SHA-256 in hexadecimal; only the SHA-256 is sent")
	flags.StringVar(&who.ip, "ip", "", "the client's address")
	flags.StringVar(&who.tier, "tier", "", "the client's tier, where its pool is not known yet")
	return cmd
}
