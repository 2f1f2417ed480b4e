package rpc

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// ParseAddresses splits a list "host:port,host:port". A port that isn't given is defaultPort; IPv6 hosts stand in brackets
// when a port follows ("[::1]:7050"). An empty host means all interfaces. Blanks around commas and empty parts are let pass;
// an empty list is no error and gives none.
func ParseAddresses(list string, defaultPort int) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		a, err := parseAddress(part, defaultPort)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func parseAddress(s string, defaultPort int) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		// No port: a bare host, a bare IPv6 address, or one in brackets.
		bare := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
		if strings.HasPrefix(s, "[") != strings.HasSuffix(s, "]") {
			return "", fmt.Errorf("address %q: a bracket without its other half: want host:port or [ipv6]:port", s)
		}
		if strings.Contains(bare, ":") && net.ParseIP(withoutZone(bare)) == nil {
			return "", fmt.Errorf("address %q: want host:port or [ipv6]:port", s)
		}
		host, port = bare, strconv.Itoa(defaultPort)
	}
	if port == "" {
		port = strconv.Itoa(defaultPort)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("address %q: port %q: want a number from 0 to 65535", s, port)
	} else if port = strconv.FormatUint(n, 10); strings.ContainsAny(host, " \t/[]") {
		return "", fmt.Errorf("address %q: host %q: want a name or an IP address, no scheme and no path", s, host)
	}
	return net.JoinHostPort(host, port), nil
}

func withoutZone(host string) string {
	ip, _, _ := strings.Cut(host, "%")
	return ip
}

// AdvertisedAddresses returns where others reach a server that listens on bound (actual addresses, with ports). What is
// configured counts, with a port of 0 filled in from the first bound address; with nothing configured it is the bound
// addresses, this machine's name standing for "all interfaces".
func AdvertisedAddresses(configured, bound []string) ([]string, error) {
	if len(bound) == 0 {
		return nil, fmt.Errorf("addresses to advertise: nothing is bound")
	}
	var out []string
	for _, a := range configured {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fmt.Errorf("address to advertise: %w", err)
		}
		if host == "" || isUnspecified(host) {
			return nil, fmt.Errorf("address to advertise %q: others can't connect to it: give this machine's name or address in --rpc_advertised_addresses", a)
		}
		if port == "0" {
			if _, port, err = net.SplitHostPort(bound[0]); err != nil {
				return nil, fmt.Errorf("bound address: %w", err)
			}
		}
		out = append(out, net.JoinHostPort(host, port))
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, a := range bound {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fmt.Errorf("bound address: %w", err)
		}
		if host == "" || isUnspecified(host) {
			if host, err = os.Hostname(); err != nil {
				return nil, fmt.Errorf("this machine's name for --rpc_advertised_addresses: %w", err)
			}
		}
		out = append(out, net.JoinHostPort(host, port))
	}
	return out, nil
}

func isUnspecified(host string) bool {
	ip := net.ParseIP(withoutZone(host))
	return ip != nil && ip.IsUnspecified()
}
