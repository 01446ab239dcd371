"""The kernels as built for Hopper: they compile without spilling registers, use tensor cores, and have short loops."""

from __future__ import annotations

import pytest
import triton

from bench.gpu import roofline
from tests.cluster.layout import user_cache
from tests.kernels.check import Build, modules
from tests.kernels.hopper import Resources, compile_all, section, table
from tests.kernels.sass import inner_loop, inner_loops

BUILDS = [pytest.param(build, id=build.name) for module in modules() for build in module.BUILDS]


@pytest.fixture(scope="module")
def found() -> dict[str, Resources | Exception]:
    """All builds. Triton keeps what it compiled, by its own key of sources, constants, target and compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(user_cache() / "triton"))
        return compile_all()


@pytest.mark.parametrize("build", BUILDS)
def test_builds_for_hopper(build: Build, found: dict[str, Resources | Exception]) -> None:
    resources = found[build.name]
    assert isinstance(resources, Resources), resources
    assert resources.spilled == 0, "bytes that found no register"
    assert resources.registers <= build.max_registers
    assert resources.shared <= build.max_shared
    assert [instruction for instruction in build.sass if instruction not in resources.sass] == []
    assert bool(resources.loop) == ("all" in build.max_loop), "a loop without a bound, or a bound without a loop"
    counts = resources.loop | {"all": resources.loop.total()}
    assert {kind: counts[kind] for kind, most in build.max_loop.items() if counts[kind] > most} == {}


def test_the_table_has_every_build(found: dict[str, Resources | Exception]) -> None:
    assert len(table(found).splitlines()) == 2 + len(BUILDS)


def test_the_page_shows_these_builds(found: dict[str, Resources | Exception]) -> None:
    page = roofline.PAGE.read_text()
    if f"\nTriton {triton.__version__}, sm_90:\n" not in page:
        pytest.skip("the page's builds are another Triton's")
    assert roofline.updated(page, {"builds": section(found)}) == page, "run python -m bench.gpu.roofline --builds"


LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;             /* 0x00000a00ff017624 */
                                                                      /* 0x000fe400078e00ff */
        /*0010*/              @!P0 BRA 0x90 ;                         /* 0x0000 */
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x0000 */
        /*0030*/                   IMAD.MOV.U32 R5, RZ, RZ, R4 ;      /* 0x0000 */
        /*0040*/                   MUFU.EX2 R6, R5 ;                  /* 0x0000 */
        /*0050*/               @P1 BRA 0x40 ;                         /* 0x0000 */
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, R4 ;  /* 0x0000 */
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, R4 ;  /* 0x0000 */
        /*0080*/              @UP1 BRA.U 0x60 ;                       /* 0x0000 */
        /*0090*/               @P2 BRA 0x20 ;                         /* 0x0000 */
        /*00a0*/                   EXIT ;                             /* 0x0000 */
        /*00b0*/                   BRA 0xb0;                          /* 0x0000 */
"""


def test_inner_loops_are_found_by_their_branches_back() -> None:
    first, second = inner_loops(LISTING)
    assert first == {"MUFU": 1, "BRA": 1}
    assert second == {"HGMMA": 2, "BRA": 1}
    assert inner_loop(LISTING) == second, "the one with products"
    assert not inner_loop(LISTING.replace("BRA", "NOP"))
