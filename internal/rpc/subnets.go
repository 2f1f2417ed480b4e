package rpc

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// DefaultTrustedSubnets is --trusted_subnets where it isn't given: loopback and the private networks, as Kudu's, and the
// same of IPv6.
const DefaultTrustedSubnets = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,169.254.0.0/16,::1/128,fc00::/7,fe80::/10"

// ParseSubnets splits a list of subnets "10.0.0.0/8,fc00::/7"; a bare address stands for itself. Bits after the mask must
// be zero: who writes 10.1.2.3/8 may have meant something else.
func ParseSubnets(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if a, err := netip.ParseAddr(part); err == nil && a.Zone() == "" {
			a = a.Unmap()
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, fmt.Errorf("subnet %q: want address/bits, such as 10.0.0.0/8 or fc00::/7", part)
		}
		if p.Masked() != p {
			return nil, fmt.Errorf("subnet %q: it begins at %s: write %s", part, p.Masked().Addr(), p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

func contains(subnets []netip.Prefix, a netip.Addr) bool {
	a = a.WithZone("")
	return slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

// publicAddresses returns, of the addresses that bound stands for (an unspecified one for those of all interfaces), those
// that others than the default's subnets reach.
func publicAddresses(bound []net.Addr, interfaces func() ([]net.Addr, error)) []string {
	private, err := ParseSubnets(DefaultTrustedSubnets)
	if err != nil {
		return nil // it parses: a test says so
	}
	var out []string
	add := func(a netip.Addr) {
		if a = a.Unmap(); a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !contains(private, a) && !slices.Contains(out, a.String()) {
			out = append(out, a.String())
		}
	}
	for _, b := range bound {
		tcp, ok := b.(*net.TCPAddr)
		if !ok {
			continue
		}
		a := tcp.AddrPort().Addr()
		if a.IsValid() && !a.IsUnspecified() {
			add(a)
			continue
		}
		all, err := interfaces()
		if err != nil {
			continue
		}
		for _, ia := range all {
			if n, ok := ia.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					add(ip)
				}
			}
		}
	}
	return out
}

// unrestricted says whether the subnets hold all of IPv4 or IPv6.
func unrestricted(subnets []netip.Prefix) bool {
	return slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Bits() == 0 })
}
