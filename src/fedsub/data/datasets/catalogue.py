"""Every data set that fedsub knows, with its terms. Sizes and digests are given only where they are certain."""

from __future__ import annotations

from fedsub.data.datasets import amazon, cart_buy, movielens_small, sentiment, taobao
from fedsub.data.datasets.movielens import HOME, movielens
from fedsub.data.datasets.registry import DataSet, File, Look

_RANDOM = {"by": "random", "train": 0.8, "seed": 0}
_HOLDOUT = {"by": "column", "column": "holdout"}
_HARPER = 'F. M. Harper, J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4):19, 2015.'

_ALL = (
    DataSet(
        name="movielens-1m",
        title="MovieLens-1M",
        summary="ratings by users with gender and age; label: four stars or more",
        home=HOME,
        licence=(
            "GroupLens: free for research. No endorsement by the University of Minnesota may be implied; acknowledge "
            "the data set in publications; no redistribution without separate permission; no commercial use without "
            "permission."
        ),
        licence_short="research, no redistribution",
        citation=_HARPER,
        files=(
            File(
                "ml-1m.zip",
                "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
                sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
                md5="c4d9eecfca2ab87c1945afe126590906",
            ),
        ),
        reader=movielens,
        looks=(
            Look((".dat",), first=r"\d+::(\d+::[1-5]::\d{9,10}|[MF]::\d+::\d+::.*)$"),
            Look((".parquet",), columns=("user_id", "movie_id", "rating", "timestamp")),
        ),
        split=_RANDOM,
        shape=(6_040, 1_000_209),
    ),
    DataSet(
        name="movielens-latest-small",
        title="MovieLens latest-small",
        summary="ratings of movies in half stars; label: four or more",
        home=movielens_small.HOME,
        licence=(
            "GroupLens: research use. No endorsement may be implied; acknowledge the data set; redistribution, also of "
            "transformed copies, is allowed under the same terms; no commercial use without permission."
        ),
        licence_short="research, same terms",
        citation=_HARPER,
        files=(
            File(
                "ml-latest-small.zip",
                "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip",
                sha256="696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
            ),
        ),
        reader=movielens_small.movielens_latest_small,
        looks=(
            Look((".csv",), first="userId,movieId,rating,timestamp$"),
            Look((".parquet",), columns=("userId", "movieId", "rating", "timestamp")),
        ),
        split=_RANDOM,
        shape=(610, 100_836),
    ),
    DataSet(
        name="sentiment140",
        title="Sentiment140",
        summary="tweets by user; label: positive",
        home=sentiment.HOME,
        licence=(
            "Offered by its authors for research without a stated licence; the tweets are their writers'. Do not "
            "republish texts or user names."
        ),
        licence_short="research, none stated",
        citation='A. Go, R. Bhayani, L. Huang, "Twitter Sentiment Classification using Distant Supervision", 2009.',
        files=(
            File(
                "trainingandtestdata.zip",
                "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                size=81_363_704,
                sha256="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
            ),
        ),
        reader=sentiment.sentiment140,
        looks=(Look((".csv",), first=r'"?[024]"?,"?\d+"?,"?\w{3} \w{3} \d\d [\d:]{8} \w+ \d{4}"?,'),),
        split=_RANDOM,
    ),
    DataSet(
        name="rotten-tomatoes-critics",
        title="Rotten Tomatoes critics' review lines (a stand-in, NOT Sentiment140)",
        summary="one-line reviews by critic; label: fresh",
        home=sentiment.CRITICS_HOME,
        licence=(
            "No licence of the data is known: the lines are their critics', collected by Rotten Tomatoes. For internal "
            "experiments only; do not republish."
        ),
        licence_short="none known, internal only",
        citation="Review lines of Rotten Tomatoes, from a teaching repository; never present them as Sentiment140.",
        files=(File("rt.reviews.tsv.gz"),),
        reader=sentiment.rotten_tomatoes_critics,
        looks=(
            Look((".tsv",), first=r"id\treview\trating\tfresh\tcritic\t"),
            Look((".parquet",), columns=("client_id", "label", "text")),
        ),
        split=_RANDOM,
        shape=(1_392, 43_399),
    ),
    DataSet(
        name="amazon-electronics",
        title="Amazon Electronics",
        summary="ratings by user with the history of liked items; label: five stars",
        home=amazon.HOME,
        licence=(
            "Offered by UCSD for research without an explicit licence. Research use only; do not republish; cite the "
            "papers."
        ),
        licence_short="research, none stated",
        citation=(
            'J. McAuley et al., "Image-based recommendations on styles and substitutes", SIGIR 2015; R. He, '
            'J. McAuley, "Ups and downs", WWW 2016. The Parquet layout also: Y. Ding et al., NeurIPS 2022.'
        ),
        files=(
            File(
                "reviews_Electronics_5.json.gz",
                "http://snap.stanford.edu/data/amazon/productGraph/categoryFiles/reviews_Electronics_5.json.gz",
                size=495_854_086,
            ),
        ),
        reader=amazon.amazon_electronics,
        looks=(
            Look((".json",), first=r'\{.*"reviewerID": *".*"asin": *"'),
            Look((".csv",), first=r"A[0-9A-Z]{9,20},[0-9A-Z]{10},[1-5](\.0)?,\d{9,10}$"),
            Look((".parquet",), columns=("client_id", "time_rank", "item_id", "label", "holdout")),
        ),
        split=_HOLDOUT,
    ),
    DataSet(
        name="taobao-user-behaviour",
        title="Taobao user behaviour",
        summary="page views with histories, and drawn items that were not viewed; label: viewed",
        home=taobao.HOME,
        licence="Alibaba (Tianchi): non-commercial use, after a login on the site, on the terms shown there.",
        licence_short="non-commercial, login",
        citation='H. Zhu et al., "Learning Tree-based Deep Model for Recommender Systems", KDD 2018.',
        files=(File("UserBehavior.csv.zip"),),
        reader=taobao.taobao_user_behaviour,
        looks=(Look((".csv",), first=r"\d+,\d+,\d+,(pv|buy|cart|fav),-?\d+$"),),
        split=_HOLDOUT,
    ),
    DataSet(
        name="taobao-cart-buy",
        title="Taobao carts and purchases (EHCF)",
        summary="items in the cart or bought, with the client's other items; label: bought",
        home=cart_buy.HOME,
        licence="The repository states no licence; Alibaba offers the underlying data for non-commercial use.",
        licence_short="none stated",
        citation=(
            'C. Chen et al., "Efficient Heterogeneous Collaborative Filtering without Negative Sampling for '
            'Recommendation", AAAI 2020.'
        ),
        files=(File("cart.csv"), File("buy.train.txt"), File("buy.test.txt")),
        reader=cart_buy.taobao_cart_buy,
        looks=(
            Look((".csv", ".txt"), first=r"uid[\t,]sid$"),
            Look((".parquet",), columns=("client_id", "item_id", "event")),
        ),
        split=_RANDOM,
        shape=(48_749, 373_904),
    ),
)

DATASETS: dict[str, DataSet] = {d.name: d for d in _ALL}
