#!/usr/bin/env bash
# Makes the secrets of a local deployment in deployments/compose/secrets, once; it never replaces one.
#   hash_secret       all roles hash identities under it; two of them would double every limit, so it must not change
#   credentials       of the admin API, as SHA-256; admin_token is the bearer behind it
#   api_keys          of clients, as SHA-256; client_keys names the keys behind them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The directory keeps others out on this machine. The files in it are readable, for the containers' user is not yours.
mkdir -p -m 0700 secrets
cd secrets

random() { head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
sum() { printf %s "$1" | sha256sum | cut -d' ' -f1; }

if [[ ! -e hash_secret ]]; then
  random >hash_secret
fi
if [[ ! -e credentials ]]; then
  token=$(random)
  printf '%s\n' "$token" >admin_token
  printf -- '- {name: operator, role: operator, sha256: "%s"}\n' "$(sum "$token")" >credentials
fi
if [[ ! -e api_keys ]]; then
  acme=$(random) ada=$(random)
  printf 'acme (free): %s\nada (premium): %s\n' "$acme" "$ada" >client_keys
  {
    printf -- '- {sha256: "%s", user: acme, tier: free}\n' "$(sum "$acme")"
    printf -- '- {sha256: "%s", user: ada, tier: premium}\n' "$(sum "$ada")"
  } >api_keys
fi
chmod 0644 hash_secret credentials api_keys
chmod 0600 admin_token client_keys
echo "the secrets are in $PWD; the bearer of the admin API is in admin_token, clients' keys are in client_keys"
